// Conversion from `T` to the dtype with the number `op`, as Rust's `as`.

template <class D> struct Cast {
    template <int N> __device__ inline void run(D* d, const T* x, const None*, const None*) const {
        do EACH(as<D>(x[k])) while (false);
    }
};

KERNEL(cast, Each) {
    switch (p.op) {
    case U8: return map<u8, T, None, None>(p, Cast<u8>{});
    case U32: return map<u32, T, None, None>(p, Cast<u32>{});
    case I64: return map<i64, T, None, None>(p, Cast<i64>{});
    case F32: return map<f32, T, None, None>(p, Cast<f32>{});
    default: return map<f64, T, None, None>(p, Cast<f64>{});
    }
}

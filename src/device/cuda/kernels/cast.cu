// Conversion from `T` to the dtype with the number `op`, as Rust's `as`. Truth values are bytes of 0 and 1.

template <class D> struct Cast {
    template <int N> __device__ inline void run(D* d, const T* x, const None*, const None*) const {
        do EACH(as<D>(x[k])) while (false);
    }
};

struct Truth {
    template <int N> __device__ inline void run(u8* d, const T* x, const None*, const None*) const {
        do EACH(!((W)x[k] == (W)0)) while (false);
    }
};

KERNEL(cast, Each) {
    switch (p.op) {
    case BOOL: return map<u8, T, None, None>(p, Truth{});
    case U8: return map<u8, T, None, None>(p, Cast<u8>{});
    case U16: return map<u16, T, None, None>(p, Cast<u16>{});
    case U32: return map<u32, T, None, None>(p, Cast<u32>{});
    case U64: return map<u64, T, None, None>(p, Cast<u64>{});
    case I8: return map<i8, T, None, None>(p, Cast<i8>{});
    case I16: return map<i16, T, None, None>(p, Cast<i16>{});
    case I32: return map<i32, T, None, None>(p, Cast<i32>{});
    case I64: return map<i64, T, None, None>(p, Cast<i64>{});
    case F8E4M3: return map<f8e4m3, T, None, None>(p, Cast<f8e4m3>{});
    case F16: return map<f16, T, None, None>(p, Cast<f16>{});
    case BF16: return map<bf16, T, None, None>(p, Cast<bf16>{});
    case F32: return map<f32, T, None, None>(p, Cast<f32>{});
    default: return map<f64, T, None, None>(p, Cast<f64>{});
    }
}

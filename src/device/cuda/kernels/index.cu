// Picking and adding by indices along one axis. A list of indices is an operand whose other strides are 0.
//
// An index outside the axis is written down for the host, but for the largest of its dtype, which names no place on
// purpose; nothing outside an operand is ever touched.

__device__ inline i64 id_at(const Pick& p, i64 place) {
    if (p.id_type == U8) return at<u8>(p.ids.ptr)[place];
    if (p.id_type == U32) return at<u32>(p.ids.ptr)[place];
    return at<i64>(p.ids.ptr)[place];
}

__device__ inline i64 nowhere(const Pick& p) {
    if (p.id_type == U8) return 255;
    if (p.id_type == U32) return 4294967295ll;
    return 9223372036854775807ll;
}

// The index at `place`; false, and reported unless it is meant so, if the axis has no such place.
__device__ inline bool index(const Pick& p, i64 place, i64& id) {
    id = id_at(p, place);
    if (id >= 0 && (u64)id < p.limit) return true;
    if (id != nowhere(p)) report(p.fault, p.op, id, p.limit);
    return false;
}

// Offsets of the element with number `i`: in what has an element for each number, in the indices, and in what is
// picked from, there without the axis.
template <class I> __device__ inline void find(const Pick& p, const Ref& whole, const Ref& picked, I i, i64* offsets) {
    offsets[0] = offsets[1] = offsets[2] = 0;
#pragma unroll 1
    for (u32 d = p.rank; d-- > 0;) {
        I dim = (I)p.dims[d], rest = d == 0 ? 0 : i / dim;
        i64 place = (i64)(i - rest * dim);
        offsets[0] += place * whole.strides[d];
        offsets[1] += place * p.ids.strides[d];
        if (d != p.axis) offsets[2] += place * picked.strides[d];
        i = rest;
    }
}

__device__ inline void find(const Pick& p, const Ref& whole, const Ref& picked, u64 i, bool wide, i64* offsets) {
    if (wide) find<u64>(p, whole, picked, i, offsets);
    else find<u32>(p, whole, picked, (u32)i, offsets);
}

KERNEL(gather, Pick) {
    for (u64 i = thread_number(); i < p.count; i += thread_count()) {
        i64 offsets[3], id;
        find(p, p.dst, p.src, i, p.count >> 32, offsets);
        // The result of an index outside is 0, so that it never is what the memory held before.
        T picked = (T)0;
        if (index(p, offsets[1], id)) picked = at<T>(p.src.ptr)[offsets[2] + id * p.src.strides[p.axis]];
        at<T>(p.dst.ptr)[offsets[0]] = picked;
    }
}

#if IS_HALF
__device__ inline T of_bits(u32 bits) {
    T value;
    value.bits = (decltype(value.bits))bits;
    return value;
}
__device__ inline u32 small_bits(T value) { return value.bits; }
#else
__device__ inline T of_bits(u32 bits) { return (T)bits; }
__device__ inline u32 small_bits(T value) { return (u32)value & (sizeof(T) == 1 ? 255u : 65535u); }
#endif

#if KIND == KIND_u32 || KIND == KIND_f32 || KIND == KIND_f64
__device__ inline void add(T* to, T value) { atomicAdd(to, value); }
#elif KIND == KIND_i32
__device__ inline void add(i32* to, i32 value) { atomicAdd((u32*)to, (u32)value); }
#elif KIND == KIND_u64 || KIND == KIND_i64
__device__ inline void add(T* to, T value) { atomicAdd((u64*)to, (u64)value); }
#else
// Atomics change no less than 4 bytes: the rest of the word that has the element stays as it is.
__device__ inline void add(T* to, T value) {
    u32* word = (u32*)((u64)to & ~3ull);
    u32 shift = (u32)((u64)to & 3) * 8, mask = (sizeof(T) == 1 ? 255u : 65535u) << shift;
    u32 seen = atomicCAS(word, 0u, 0u), before;
    do {
        before = seen;
        T sum = (T)plus(of_bits(before >> shift), value);
        seen = atomicCAS(word, before, (before & ~mask) | (small_bits(sum) << shift));
    } while (seen != before);
}
#endif

// In any order, by atomics.
__device__ inline void scatter_anyhow(const Pick& p) {
    for (u64 i = thread_number(); i < p.count; i += thread_count()) {
        i64 offsets[3], id;
        find(p, p.src, p.dst, i, p.count >> 32, offsets);
        if (!index(p, offsets[1], id)) continue;
        add(at<T>(p.dst.ptr) + offsets[2] + id * p.dst.strides[p.axis], at<T>(p.src.ptr)[offsets[0]]);
    }
}

// In order along the axis: a thread has all elements that differ in their place on it alone. Only they can meet in
// one element of the destination.
__device__ inline void scatter_in_order(const Pick& p) {
    u64 len = p.dims[p.axis], inner = 1;
    for (u32 d = p.axis + 1; d < p.rank; ++d) inner *= p.dims[d];
    u64 columns = p.count / len;
    for (u64 column = thread_number(); column < columns; column += thread_count()) {
        u64 start = column / inner * inner * len + column % inner;
        i64 offsets[3], id;
        find(p, p.src, p.dst, start, p.count >> 32, offsets);
        for (u64 i = 0; i < len; ++i) {
            if (index(p, offsets[1] + (i64)i * p.ids.strides[p.axis], id)) {
                T* to = at<T>(p.dst.ptr) + offsets[2] + id * p.dst.strides[p.axis];
                *to = (T)plus(*to, at<T>(p.src.ptr)[offsets[0] + (i64)i * p.src.strides[p.axis]]);
            }
        }
    }
}

KERNEL(scatter_add, Pick) {
    if (p.ordered) scatter_in_order(p);
    else scatter_anyhow(p);
}

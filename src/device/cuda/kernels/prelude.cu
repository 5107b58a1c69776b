// What every kernel file begins with: types, parameter structs, and what differs between dtypes.
//
// Kernels are compiled once for each element type: `T` is that type and `F` names it (`-DT=f32 -DF=f32`). A kernel
// `sum` is then `sum_f32`. No header is included, so that nothing but the compiler library is needed. Parameter
// structs travel by value; `launch.rs` has the same structs, field by field.
//
// An address is that of an operand's first element. Strides count elements and may be 0 or negative.
//
// - Blocks have THREADS threads and grids one dimension; a kernel is right for any number of blocks.
// - Arithmetic is that of the kernels for the CPU: integers wrap, conversions saturate, and no product is fused with
//   a sum (`--fmad=false`), so that results differ at most by the last bits of a library function.

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef signed char i8;
typedef short i16;
typedef int i32;
typedef long long i64;
typedef float f32;
typedef double f64;

#define RANK 6
#define THREADS 256

#define PASTE_(a, b) a##_##b
#define PASTE(a, b) PASTE_(a, b)

// `KERNEL(sum, Fold) { .. }` is the kernel of this element type, whose parameters are `p`. The parameters stay in
// constant memory, also where an index into them is not known before the kernel runs.
#ifndef ENTRY
#define ENTRY(full, Params) \
    extern "C" __global__ void __launch_bounds__(THREADS) full(const __grid_constant__ Params p)
#endif
#define KERNEL(name, Params) ENTRY(PASTE(name, F), Params)

// Numbers of dtypes.
enum { BOOL, U8, U16, U32, U64, I8, I16, I32, I64, F8E4M3, F16, BF16, F32, F64 };

// What the preprocessor knows of `T`.
#define KIND_bool 0
#define KIND_u8 1
#define KIND_u16 2
#define KIND_u32 3
#define KIND_u64 4
#define KIND_i8 5
#define KIND_i16 6
#define KIND_i32 7
#define KIND_i64 8
#define KIND_f8e4m3 9
#define KIND_f16 10
#define KIND_bf16 11
#define KIND_f32 12
#define KIND_f64 13
#define KIND PASTE(KIND, F)
#define IS_FLOAT (KIND >= KIND_f8e4m3)
// Floats of 8 and 16 bits.
#define IS_HALF (KIND >= KIND_f8e4m3 && KIND <= KIND_bf16)
#define IS_SIGNED (KIND >= KIND_i8)

// The bits of a float.
union Bits32 {
    f32 value;
    u32 bits;
};
union Bits64 {
    f64 value;
    u64 bits;
};
__device__ inline u32 bits_of(f32 x) { return Bits32{x}.bits; }
__device__ inline u64 bits_of(f64 x) { return Bits64{x}.bits; }
__device__ inline f32 with_bits(u32 bits) {
    Bits32 both;
    both.bits = bits;
    return both.value;
}
__device__ inline f64 with_bits(u64 bits) {
    Bits64 both;
    both.bits = bits;
    return both.value;
}

// Halves compute as f32: they become one where they are used, and a result is rounded to the nearest, of two to the
// even one. The real compiler has instructions for f16; the rest is the same in any C++.
__device__ inline u32 half_bits(f32 x) {
#ifdef __CUDA_ARCH__
    u16 bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(x));
    return bits;
#else
    u32 bits = bits_of(x), sign = bits >> 16 & 0x8000u;
    bits &= 0x7fffffffu;
    if (bits > 0x7f800000u) return sign | 0x7e00u;
    if (bits >= 0x47800000u) return sign | 0x7c00u;
    // Below the smallest normal number the addition rounds where the last bit is to be.
    if (bits < 0x38800000u) return sign | (bits_of(with_bits(bits) + 0.5f) - 0x3f000000u);
    return sign | ((bits - 0x38000000u + 0xfffu + (bits >> 13 & 1u)) >> 13);
#endif
}

__device__ inline f32 half_value(u16 bits) {
#ifdef __CUDA_ARCH__
    f32 value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
    return value;
#else
    u32 sign = (u32)(bits & 0x8000u) << 16, rest = bits & 0x7fffu;
    if (rest >= 0x7c00u) return with_bits(sign | 0x7f800000u | (rest & 0x3ffu) << 13);
    if (rest < 0x400u) return with_bits(sign | bits_of((f32)rest * 5.9604645e-8f));
    return with_bits(sign | ((rest << 13) + 0x38000000u));
#endif
}

struct f16 {
    u16 bits;
    f16() = default;
    __device__ inline f16(f32 x) : bits((u16)half_bits(x)) {}
    __device__ inline operator f32() const { return half_value(bits); }
};

struct bf16 {
    u16 bits;
    bf16() = default;
    __device__ inline bf16(f32 x) {
        u32 all = bits_of(x);
        bits = (u16)((all & 0x7fffffffu) > 0x7f800000u ? all >> 16 | 0x40u : (all + 0x7fffu + (all >> 16 & 1u)) >> 16);
    }
    __device__ inline operator f32() const { return with_bits((u32)bits << 16); }
};

// No infinity: what lies beyond 448 stays there. As on the CPU, in any C++.
struct f8e4m3 {
    u8 bits;
    f8e4m3() = default;
    __device__ inline f8e4m3(f32 x) {
        u32 all = bits_of(x), size = all & 0x7fffffffu, held;
        if (size > 0x7f800000u) held = 0x7fu;
        else if (size > 0x43e80000u) held = 0x7eu;
        // Below the smallest normal number the addition rounds where the last bit is to be.
        else if (size < 0x3c800000u) held = bits_of(with_bits(size) + 16384.0f) - 0x46800000u;
        else held = ((size + 0x7ffffu + (size >> 20 & 1u)) >> 20) - 960u;
        bits = (u8)(all >> 24 & 0x80u | held);
    }
    __device__ inline operator f32() const {
        u32 sign = (u32)(bits & 0x80u) << 24, size = bits & 0x7fu;
        if (size == 0x7fu) return with_bits(sign | 0x7fc00000u);
        if (size < 8u) return with_bits(sign | bits_of((f32)size * 0.001953125f));
        return with_bits(sign | (size << 20) + 0x3c000000u);
    }
};

// What elements of `T` compute in.
#if IS_HALF
typedef f32 W;
#else
typedef T W;
#endif

struct Ref {
    u64 ptr;
    i64 strides[RANK];
};

// Element by element. `rank` 0: every operand is contiguous, and `dims` means nothing.
struct Each {
    u64 count;
    u32 rank;
    u32 op;
    u64 dims[RANK];
    Ref dst, a, b, c;
    f64 x, y;
};

// `count` outputs of `len` elements each. `lanes` threads share an output (a power of two up to 256), and `parts`
// blocks; with more than one part, `scratch` has `parts` elements for each output (arg_reduce: u64 indices follow
// them) and `tickets` a u32 of 0 for each group of outputs, which the last block sets to 0 again.
struct Fold {
    u64 count, len;
    u32 op, lanes, lanes_first, parts;
    u32 kept_rank, folded_rank;
    u64 kept_dims[RANK];
    i64 kept_strides[RANK];
    u64 folded_dims[RANK];
    i64 folded_strides[RANK];
    u64 src, dst, scratch, tickets;
};

// Matrices of `rows` x `cols`: `strides[0]` steps to the next row, `strides[1]` to the next column.
struct Rows {
    u64 rows, cols;
    u32 op, label_type;
    Ref a, b, dst;
    u64 labels;
    i64 label_stride;
    u64 loss, scratch, ticket, fault;
};

// `dst[i] = src[j]` or `dst[j] += src[i]`, where `j` is `i` with its place on `axis` replaced by `ids[i]`.
// `limit`: indices are below it. `ordered`: additions to one element happen in the order of `i` along the axis.
struct Pick {
    u64 count;
    u32 rank, axis, id_type, ordered;
    u64 dims[RANK];
    Ref dst, src, ids;
    u64 limit;
    u64 fault;
    u32 op, pad;
};

// `replay`: the address of the number of replays of a graph, or 0.
struct Draw {
    u64 count, dst, seed, first;
    f64 low, high;
    u64 replay;
};

struct Step {
    u64 count, param, grad, m, v, h;
    f64 rate, a, b, eps, decay, fix1, fix2, next;
    u64 step, replay;
};

// `batch` products, whose places `dims` and the strides of `a` and `b` count.
struct Product {
    u64 m, n, k, batch;
    u32 rank, pad;
    u64 dims[RANK];
    Ref a, b;
    i64 a_row, a_col, b_row, b_col;
    u64 dst;
};

// A window over the three spatial axes of `[B, channels, ins]`, which takes `outs` places; `adaptive`: by dividing the
// axes among them. Or a resized image, with places as `Spacing` has them. `dst` is contiguous, `ids` may be 0.
struct Slide {
    u64 count, channels;
    u64 ins[3], outs[3], size[3], stride[3], padding[3], dilation[3];
    Ref src;
    u64 dst, ids;
    u32 op, adaptive;
    f64 scale[2], shift;
};

// `lines` of `len` elements, whose first ones `dims` and the strides of the operands count; `steps`: along a line, of
// `src`, `grad` and `dst`. `ids` lie as `dst` does, or are 0.
struct Scan {
    u64 lines, len;
    u32 rank, op, reverse, pad;
    u64 dims[RANK];
    Ref src, grad, dst;
    i64 steps[3];
    u64 ids;
};

// Rows of `cols` elements; `dst` and `products` are contiguous, `scale` and `shift` may be 0.
struct Norm {
    u64 rows, cols;
    u32 centred, pad;
    Ref src, grad;
    u64 dst, products, scale, shift;
    i64 scale_step, shift_step;
    f64 eps;
};

// The first bad index that a kernel met, in memory that the host reads. `state`: 0 free, 1 taken, 2 written.
struct Fault {
    u32 state, op;
    i64 index;
    u64 dim;
};

// -- Where a thread is, and what it works on ------------------------------------------------------------------------

__device__ inline u64 thread_number() { return (u64)blockIdx.x * THREADS + threadIdx.x; }
__device__ inline u64 thread_count() { return (u64)gridDim.x * THREADS; }

template <class E> __device__ inline E* at(u64 address) { return (E*)address; }

// Elements of any type that one instruction moves, if there are 16 bytes of them.
template <class E, int N> struct alignas(sizeof(E) * N) Pack {
    E e[N];
};

// The offset of the element with number `i`, in row-major order of `dims`. Numbers below 2^32 - 1 are divided in 32
// bits, which is several times faster; by a longer axis they are divided as by one of 2^32 - 1.
template <class I> __device__ inline i64 offset_in(u32 rank, const u64* dims, const i64* strides, I i) {
    i64 offset = 0;
#pragma unroll 1
    for (u32 d = rank; d-- > 1;) {
        I dim = dims[d] > (I)-1 ? (I)-1 : (I)dims[d], rest = i / dim;
        offset += (i64)(i - rest * dim) * strides[d];
        i = rest;
    }
    return rank == 0 ? 0 : offset + (i64)i * strides[0];
}

__device__ inline i64 offset_of(u32 rank, const u64* dims, const i64* strides, u64 i) {
    return i >= 0xffffffff ? offset_in<u64>(rank, dims, strides, i) : offset_in<u32>(rank, dims, strides, (u32)i);
}

// -- Arithmetic -----------------------------------------------------------------------------------------------------

// Integers wrap, whatever their sign.
template <class E> __device__ inline E plus(E x, E y) { return (E)((u64)x + (u64)y); }
__device__ inline u32 plus(u32 x, u32 y) { return x + y; }
__device__ inline f32 plus(f32 x, f32 y) { return x + y; }
__device__ inline f64 plus(f64 x, f64 y) { return x + y; }
__device__ inline f32 plus(f16 x, f16 y) { return (f32)x + (f32)y; }
__device__ inline f32 plus(bf16 x, bf16 y) { return (f32)x + (f32)y; }
__device__ inline f32 plus(f8e4m3 x, f8e4m3 y) { return (f32)x + (f32)y; }

template <class E> __device__ inline E times(E x, E y) { return (E)((u64)x * (u64)y); }
__device__ inline u32 times(u32 x, u32 y) { return x * y; }
__device__ inline f32 times(f32 x, f32 y) { return x * y; }
__device__ inline f64 times(f64 x, f64 y) { return x * y; }
__device__ inline f32 times(f16 x, f16 y) { return (f32)x * (f32)y; }
__device__ inline f32 times(bf16 x, bf16 y) { return (f32)x * (f32)y; }
__device__ inline f32 times(f8e4m3 x, f8e4m3 y) { return (f32)x * (f32)y; }

template <class E> __device__ inline bool is_nan(E x) { return x != x; }
template <class E> __device__ inline bool is_negative(E x) { return x < (E)0; }
__device__ inline bool is_negative(u8) { return false; }
__device__ inline bool is_negative(u16) { return false; }
__device__ inline bool is_negative(u32) { return false; }
__device__ inline bool is_negative(u64) { return false; }

// The larger (smaller) one; NaN if either is.
template <class E> __device__ inline E larger(E x, E y) { return x > y || is_nan(x) ? x : y; }
template <class E> __device__ inline E smaller(E x, E y) { return x < y || is_nan(x) ? x : y; }

// Long functions stand by themselves: repeated for every element of a pack they would be most of a kernel, and spill.
__device__ inline f32 exp_(f32 x) { return expf(x); }
__device__ __noinline__ f64 exp_(f64 x) { return exp(x); }
__device__ inline f32 log_(f32 x) { return logf(x); }
__device__ __noinline__ f64 log_(f64 x) { return log(x); }
__device__ inline f32 sqrt_(f32 x) { return sqrtf(x); }
__device__ inline f64 sqrt_(f64 x) { return sqrt(x); }
__device__ inline f32 tanh_(f32 x) { return tanhf(x); }
__device__ __noinline__ f64 tanh_(f64 x) { return tanh(x); }
__device__ __noinline__ f32 sin_(f32 x) { return sinf(x); }
__device__ __noinline__ f64 sin_(f64 x) { return sin(x); }
__device__ __noinline__ f32 cos_(f32 x) { return cosf(x); }
__device__ __noinline__ f64 cos_(f64 x) { return cos(x); }
__device__ __noinline__ f32 pow_(f32 x, f32 y) { return powf(x, y); }
__device__ __noinline__ f64 pow_(f64 x, f64 y) { return pow(x, y); }
__device__ inline f32 abs_(f32 x) { return fabsf(x); }
__device__ inline f64 abs_(f64 x) { return fabs(x); }
template <class E> __device__ inline E fused(E x, E y, E z) { return plus(times(x, y), z); }
__device__ inline f32 fused(f32 x, f32 y, f32 z) { return fmaf(x, y, z); }
__device__ inline f64 fused(f64 x, f64 y, f64 z) { return fma(x, y, z); }

// What every value is at least, and at most.
template <class E> struct Bounds;
#define BOUNDS(E, least, most)                                                                                        \
    template <> struct Bounds<E> {                                                                                    \
        static __device__ inline E low() { return least; }                                                            \
        static __device__ inline E high() { return most; }                                                            \
    };
BOUNDS(u8, 0, 255)
BOUNDS(u16, 0, 65535)
BOUNDS(u32, 0, 0xffffffffu)
BOUNDS(u64, 0, ~0ull)
BOUNDS(i8, -128, 127)
BOUNDS(i16, -32768, 32767)
BOUNDS(i32, -2147483647 - 1, 2147483647)
BOUNDS(i64, (i64)(1ull << 63), (i64)(~0ull >> 1))
BOUNDS(f32, -with_bits(0x7f800000u), with_bits(0x7f800000u))
BOUNDS(f64, -with_bits(0x7ffull << 52), with_bits(0x7ffull << 52))
BOUNDS(f16, -with_bits(0x7f800000u), with_bits(0x7f800000u))
BOUNDS(bf16, -with_bits(0x7f800000u), with_bits(0x7f800000u))
BOUNDS(f8e4m3, -448.0f, 448.0f)

// -- Conversions, as Rust's `as` ------------------------------------------------------------------------------------

// A float as an integer: towards zero, at the nearest end if it lies outside, and 0 if it is NaN.
template <class D, class S> __device__ inline D truncated(S x, S end) {
    if (is_nan(x)) return 0;
    if (x >= end) return Bounds<D>::high();
    S least = Bounds<D>::low() == 0 ? (S)0 : -end;
    return x <= least ? Bounds<D>::low() : (D)x;
}

// A double as a single whose last bit says whether anything was cut off: rounded to a half, it is as if the double had
// been rounded directly.
__device__ inline f32 to_odd(f64 x) {
    f32 near = (f32)x;
    f64 back = (f64)near;
    if (back == x || is_nan(x)) return near;
    u32 cut = fabs(back) > fabs(x) ? bits_of(near) - 1u : bits_of(near);
    return with_bits(cut | 1u);
}

// As `to_odd`, of the size of an integer: 53 bits of it, of which the last says whether more were set.
__device__ inline f32 size_to_odd(u64 size) {
    if (size >> 53 == 0) return to_odd((f64)size);
    return to_odd((f64)(size >> 11 | (u64)((size & 0x7ffull) != 0)) * 2048.0);
}
__device__ inline f32 to_odd(u64 x) { return size_to_odd(x); }
__device__ inline f32 to_odd(i64 x) { return x < 0 ? -size_to_odd(0ull - (u64)x) : size_to_odd((u64)x); }

template <class D> struct As;
#define AS_INTEGER(D, end)                                                                                            \
    template <> struct As<D> {                                                                                        \
        template <class S> static __device__ inline D of(S x) { return (D)x; }                                        \
        static __device__ inline D of(f32 x) { return truncated<D>(x, end##f); }                                      \
        static __device__ inline D of(f64 x) { return truncated<D>(x, end); }                                         \
        static __device__ inline D of(f16 x) { return of((f32)x); }                                                   \
        static __device__ inline D of(bf16 x) { return of((f32)x); }                                                  \
        static __device__ inline D of(f8e4m3 x) { return of((f32)x); }                                                \
    };
AS_INTEGER(u8, 256.0)
AS_INTEGER(u16, 65536.0)
AS_INTEGER(u32, 4294967296.0)
AS_INTEGER(u64, 18446744073709551616.0)
AS_INTEGER(i8, 128.0)
AS_INTEGER(i16, 32768.0)
AS_INTEGER(i32, 2147483648.0)
AS_INTEGER(i64, 9223372036854775808.0)
template <> struct As<f32> {
    template <class S> static __device__ inline f32 of(S x) { return (f32)x; }
};
template <> struct As<f64> {
    template <class S> static __device__ inline f64 of(S x) { return (f64)x; }
    static __device__ inline f64 of(f16 x) { return (f64)(f32)x; }
    static __device__ inline f64 of(bf16 x) { return (f64)(f32)x; }
    static __device__ inline f64 of(f8e4m3 x) { return (f64)(f32)x; }
};
// Integers of up to 16 bits are exact in f32, and those of 32 in f64.
#define AS_HALF(D)                                                                                                    \
    template <> struct As<D> {                                                                                        \
        template <class S> static __device__ inline D of(S x) { return D((f32)x); }                                   \
        static __device__ inline D of(u32 x) { return D(to_odd((f64)x)); }                                            \
        static __device__ inline D of(i32 x) { return D(to_odd((f64)x)); }                                            \
        static __device__ inline D of(u64 x) { return D(to_odd(x)); }                                                 \
        static __device__ inline D of(i64 x) { return D(to_odd(x)); }                                                 \
        static __device__ inline D of(f64 x) { return D(to_odd(x)); }                                                 \
    };
AS_HALF(f16)
AS_HALF(bf16)
AS_HALF(f8e4m3)

template <class D, class S> __device__ inline D as(S x) { return As<D>::of(x); }

// -- Functions of elements ------------------------------------------------------------------------------------------

// The type of an operand that a function does not have.
struct None {};

template <class E> struct Width {
    static constexpr int bytes = sizeof(E);
};
template <> struct Width<None> {
    static constexpr int bytes = 0;
};

// One operand: how `N` of its elements are read at once.
template <class E> struct Operand {
    template <int N> static __device__ inline bool is_aligned(u64 address) { return address % (sizeof(E) * N) == 0; }
    template <int N> static __device__ inline void pack(E* to, u64 address, u64 i) {
        Pack<E, N> pack = at<Pack<E, N>>(address)[i];
#pragma unroll
        for (int k = 0; k < N; ++k) to[k] = pack.e[k];
    }
    static __device__ inline void one(E* to, u64 address, i64 i) { *to = at<E>(address)[i]; }
};
template <> struct Operand<None> {
    template <int N> static __device__ inline bool is_aligned(u64) { return true; }
    template <int N> static __device__ inline void pack(None*, u64, u64) {}
    static __device__ inline void one(None*, u64, i64) {}
};

// The offsets of the operands' elements with number `i`.
template <class I> __device__ inline void find(const Each& p, I i, i64& dst, i64& a, i64& b, i64& c) {
    dst = a = b = c = 0;
#pragma unroll 1
    for (u32 d = p.rank; d-- > 0;) {
        I dim = (I)p.dims[d], rest = d == 0 ? 0 : i / dim;
        i64 place = (i64)(i - rest * dim);
        dst += place * p.dst.strides[d];
        a += place * p.a.strides[d];
        b += place * p.b.strides[d];
        c += place * p.c.strides[d];
        i = rest;
    }
}

// `dst = f(a, b, c)`, element by element. `f.run<N>(d, a, b, c)` computes `N` elements from arrays of them; types None
// are for operands that it does not read. Contiguous operands move in packs of 16 bytes, two in flight for each
// thread.
template <class D, class A, class B, class C, class Fn> __device__ inline void map(const Each& p, Fn f) {
    constexpr int ab = Width<A>::bytes > Width<B>::bytes ? Width<A>::bytes : Width<B>::bytes;
    constexpr int cd = Width<C>::bytes > Width<D>::bytes ? Width<C>::bytes : Width<D>::bytes;
    constexpr int N = 16 / (ab > cd ? ab : cd), M = N > 4 ? 1 : 2;
    u64 step = thread_count(), i = thread_number();
    bool is_aligned = Operand<D>::template is_aligned<N>(p.dst.ptr) && Operand<A>::template is_aligned<N>(p.a.ptr) &&
                      Operand<B>::template is_aligned<N>(p.b.ptr) && Operand<C>::template is_aligned<N>(p.c.ptr);
    if (p.rank == 0 && is_aligned) {
        u64 packs = p.count / N;
        for (u64 pack = i; pack < packs; pack += M * step) {
            D d[N * M];
            A a[N * M] = {};
            B b[N * M] = {};
            C c[N * M] = {};
#pragma unroll
            for (int m = 0; m < M; ++m) {
                u64 place = pack + m * step;
                if (place >= packs) break;
                Operand<A>::template pack<N>(a + m * N, p.a.ptr, place);
                Operand<B>::template pack<N>(b + m * N, p.b.ptr, place);
                Operand<C>::template pack<N>(c + m * N, p.c.ptr, place);
            }
            f.template run<N * M>(d, a, b, c);
#pragma unroll
            for (int m = 0; m < M; ++m) {
                u64 place = pack + m * step;
                if (place >= packs) break;
                Pack<D, N> out;
#pragma unroll
                for (int k = 0; k < N; ++k) out.e[k] = d[m * N + k];
                at<Pack<D, N>>(p.dst.ptr)[place] = out;
            }
        }
        // Less than a pack is left, an element for each of the first threads.
        i += packs * N;
    }
    for (; i < p.count; i += step) {
        i64 to = (i64)i, x = to, y = to, z = to;
        if (p.rank > 0 && p.count >> 32) find<u64>(p, i, to, x, y, z);
        else if (p.rank > 0) find<u32>(p, (u32)i, to, x, y, z);
        D d;
        A a;
        B b;
        C c;
        Operand<A>::one(&a, p.a.ptr, x);
        Operand<B>::one(&b, p.b.ptr, y);
        Operand<C>::one(&c, p.c.ptr, z);
        f.template run<1>(&d, &a, &b, &c);
        at<D>(p.dst.ptr)[to] = d;
    }
}

// The body of a function for `map`: `d[k]` of each element.
#define EACH(expression)                                                                                              \
    {                                                                                                                 \
        _Pragma("unroll") for (int k = 0; k < N; ++k) d[k] = (expression);                                            \
        break;                                                                                                        \
    }

// -- Bad indices, and the last block --------------------------------------------------------------------------------

// Writes a bad index down for the host, if it is the first one.
__device__ inline void report(u64 address, u32 op, i64 index, u64 dim) {
    Fault* fault = at<Fault>(address);
    if (atomicCAS(&fault->state, 0u, 1u) != 0u) return;
    fault->op = op;
    fault->index = index;
    fault->dim = dim;
    __threadfence_system();
    atomicExch(&fault->state, 2u);
}

// Called by all threads of a block when they have written what the last of `blocks` blocks will read. True in that
// block alone, which finds the ticket at 0 again afterwards. `flag` is a u32 in shared memory.
__device__ inline bool is_last(u64 ticket, u32 blocks, u32* flag) {
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        *flag = atomicAdd(at<u32>(ticket), 1u) == blocks - 1;
        if (*flag) atomicExch(at<u32>(ticket), 0u);
    }
    __syncthreads();
    bool last = *flag != 0;
    if (last) __threadfence();
    return last;
}

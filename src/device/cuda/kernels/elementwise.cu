// Kernels that treat each element by itself. In place is `dst` being the operand `a`.
//
// The functions of one and of two operands are the rows of the table in `operations.rs`, which stand above this text:
//
//     #define UNARY_ROWS ROW(Neg, number, negated(x), -g) ..    name, kind, value of x, gradient from g and what is kept
//     #define BINARY_ROWS ROW(Add, number, plus(x, y)) ..
//
// The number of an operation is that of the enum that names it, here and in `kernel.rs`. It is the same for all threads,
// so the choice costs little beside the memory.

#define ROW(name, ...) OP_##name,
enum { UNARY_ROWS };
enum { BINARY_ROWS };
#undef ROW
enum { EQ, NE, LT, LE, GT, GE };

#if IS_FLOAT
__device__ inline W minus(W x, W y) { return x - y; }
__device__ inline W over(W x, W y) { return x / y; }
__device__ inline W negated(W x) { return -x; }
__device__ inline W magnitude(W x) { return abs_(x); }
__device__ inline W sign(W x) {
    if (is_nan(x)) return x;
    return x == 0 ? (W)0 : x < 0 ? (W)-1 : (W)1;
}
__device__ inline W power(W x, W y) { return pow_(x, y); }
__device__ __noinline__ W angle(W y, W x) { return (W)atan2((f64)y, (f64)x); }

#define OF_LIBRARY(name)                                                                                              \
    __device__ inline f32 name##_(f32 x) { return name##f(x); }                                                       \
    __device__ inline f64 name##_(f64 x) { return name(x); }
OF_LIBRARY(floor)
OF_LIBRARY(ceil)
OF_LIBRARY(round)
OF_LIBRARY(trunc)
OF_LIBRARY(expm1)
OF_LIBRARY(log1p)
OF_LIBRARY(log2)
OF_LIBRARY(log10)
OF_LIBRARY(tan)
OF_LIBRARY(asin)
OF_LIBRARY(acos)
OF_LIBRARY(atan)
OF_LIBRARY(sinh)
OF_LIBRARY(cosh)
OF_LIBRARY(asinh)
OF_LIBRARY(acosh)
OF_LIBRARY(atanh)
OF_LIBRARY(exp2)
OF_LIBRARY(cbrt)
OF_LIBRARY(rint)
__device__ __noinline__ f32 fmod_(f32 x, f32 y) { return fmodf(x, y); }
__device__ __noinline__ f64 fmod_(f64 x, f64 y) { return fmod(x, y); }
__device__ __noinline__ f32 hypot_(f32 x, f32 y) { return hypotf(x, y); }
__device__ __noinline__ f64 hypot_(f64 x, f64 y) { return hypot(x, y); }
__device__ inline f32 copysign_(f32 x, f32 y) { return copysignf(x, y); }
__device__ inline f64 copysign_(f64 x, f64 y) { return copysign(x, y); }

// From the exact rest; in f64, so that a quotient of f32 is whole before it is rounded. A 0 has the sign of what was
// rounded.
__device__ __noinline__ W floor_div(W x, W y) {
    f64 a = (f64)x, b = (f64)y, rest = (f64)fmod_(x, y);
    if (b == 0 || fabs(a) == Bounds<f64>::high()) return (W)floor(a / b);
    f64 quotient = round((a - rest) / b);
    if (rest != 0 && (rest < 0) != (b < 0)) return (W)(quotient - 1);
    return (W)(quotient == 0 ? copysign(0.0, a / b) : quotient);
}

// As in `special.rs` of the CPU, in f64.
__device__ __noinline__ f64 erf_inv(f64 y) {
    f64 size = fabs(y);
    if (!(size < 1)) return size == 1 ? y * Bounds<f64>::high() : (f64)0 / (f64)0;
    f64 log = log1p(-size * size), t = 2.0 / (3.14159265358979323846 * 0.147) + 0.5 * log;
    f64 slope = 1.12837916709551257390, x = size < 0.1 ? size / slope : sqrt(sqrt(t * t - log / 0.147) - t);
    for (int turn = 0; turn < 3; ++turn) {
        f64 miss = size < 0.5 ? erf(x) - size : (1.0 - size) - erfc(x);
        f64 step = miss / (slope * exp(-x * x));
        x -= step / (1.0 + x * step);
    }
    return copysign(x, y);
}

__device__ __noinline__ f64 digamma(f64 x) {
    const f64 pi = 3.14159265358979323846;
    f64 sum = 0;
    if (x <= 0) {
        if (x == floor(x)) return (f64)0 / (f64)0;
        sum = -pi / tan(pi * (x - rint(x)));
        x = 1.0 - x;
    }
    for (; x < 10; x += 1) sum -= 1.0 / x;
    f64 square = 1.0 / (x * x), series = 691.0 / 32760.0 * square;
    series = (series - 1.0 / 132.0) * square;
    series = (series + 1.0 / 240.0) * square;
    series = (series - 1.0 / 252.0) * square;
    series = (series + 1.0 / 120.0) * square;
    series = (series - 1.0 / 12.0) * square;
    return sum + log(x) - 0.5 / x + series;
}

__device__ __noinline__ f64 trigamma(f64 x) {
    const f64 pi = 3.14159265358979323846;
    f64 sum = 0, sign = 1;
    if (x <= 0) {
        if (x == floor(x)) return (f64)0 / (f64)0;
        f64 sine = sin(pi * (x - rint(x)));
        sum = pi * pi / (sine * sine);
        sign = -1;
        x = 1.0 - x;
    }
    for (; x < 10; x += 1) sum += sign / (x * x);
    f64 square = 1.0 / (x * x), series = -691.0 / 2730.0 * square;
    series = (series + 5.0 / 66.0) * square;
    series = (series - 1.0 / 30.0) * square;
    series = (series + 1.0 / 42.0) * square;
    series = (series - 1.0 / 30.0) * square;
    series = (series + 1.0 / 6.0) * square;
    return sum + sign * (1.0 / x + 0.5 * square + series / x);
}

__device__ inline f64 gelu_erf(f64 x) {
    return x == Bounds<f64>::low() ? -0.0 : x * (0.5 * erfc(-x * 0.70710678118654752440));
}

// The density is 0 from 40 on; an infinity times it would be NaN.
__device__ inline f64 gelu_erf_slope(f64 x) {
    f64 near = x < -40 ? -40.0 : x > 40 ? 40.0 : x;
    return 0.5 * erfc(-x * 0.70710678118654752440) + near * exp(-0.5 * near * near) * 0.39894228040143267794;
}

// From e^-|x|, which cannot overflow.
__device__ inline W sigmoid(W x) {
    W small = exp_(-abs_(x));
    return (x < 0 ? small : (W)1) / ((W)1 + small);
}

// Equal ones may be infinite, and have no difference then.
__device__ __noinline__ W log_add_exp(W x, W y) {
    W apart = x == y ? (W)0 : x - y;
    return (x > y ? x : y) + log1p_(exp_(-abs_(apart)));
}

__device__ __noinline__ W x_log_y(W x, W y) { return x == 0 && !is_nan(y) ? (W)0 : x * log_(y); }

__device__ inline W softplus(W x) { return (x > 0 ? x : (W)0) + log1p_(exp_(-abs_(x))); }

__device__ inline W hard_sigmoid(W x) { return smaller(larger(x * ((W)1 / (W)6) + (W)0.5, (W)0), (W)1); }

// With the factors sqrt(2 / pi), and 0.044715 times that.
__device__ __noinline__ W gelu(W x) {
    const W a = (W)0.7978845608028654, b = (W)0.035677408136300125;
    return x * ((W)0.5 + (W)0.5 * tanh_(x * (a + b * (x * x))));
}

__device__ __noinline__ W gelu_slope(W x) {
    const W a = (W)0.7978845608028654, b = (W)0.035677408136300125;
    W square = x * x, t = tanh_(x * (a + b * square));
    return (W)0.5 * ((W)1 + t) + (W)0.5 * x * ((W)1 - t * t) * (a + (W)3 * b * square);
}

__device__ __noinline__ W silu_slope(W x) {
    W y = sigmoid(x);
    return y * ((W)1 + x * ((W)1 - y));
}

// With e = e^x the hyperbolic tangent is n / (n + 2) of n = e (e + 2); from 40 on it is 1.
__device__ inline W mish(W x) {
    W e = exp_(x > 40 ? (W)40 : x), n = e * (e + (W)2);
    return x * (n / (n + (W)2));
}

__device__ inline W mish_slope(W x) {
    W at = x > 40 ? (W)40 : x, e = exp_(at), n = e * (e + (W)2);
    return (n + (W)4 * at * (e * ((W)1 + e) / (n + (W)2))) / (n + (W)2);
}
#else
__device__ inline T minus(T x, T y) { return (T)((u64)x - (u64)y); }
__device__ inline T negated(T x) { return minus((T)0, x); }
__device__ inline T magnitude(T x) { return is_negative(x) ? negated(x) : x; }
__device__ inline T sign(T x) { return is_negative(x) ? (T)-1 : (T)(x > 0); }

// 0 where the divisor is. The lowest number over -1 wraps, which a processor's division need not do.
__device__ inline T over(T x, T y) {
    if (y == 0) return 0;
    if (IS_SIGNED && y == (T)-1) return negated(x);
    return (T)(x / y);
}

__device__ inline T rest_of(T x, T y) {
    if (y == 0) return x;
    if (IS_SIGNED && y == (T)-1) return 0;
    return (T)(x % y);
}

__device__ inline T floored(T x, T y) {
    T rest = rest_of(x, y), quotient = over(x, y);
    bool is_lower = y != 0 && rest != 0 && is_negative(rest) != is_negative(y);
    return is_lower ? minus(quotient, (T)1) : quotient;
}

// Bytes come sixteen at a time, and have no registers for as many divisions beside each other.
__device__ __noinline__ T rest_called(T x, T y) { return rest_of(x, y); }
__device__ __noinline__ T floored_called(T x, T y) { return floored(x, y); }
__device__ inline T fmod_(T x, T y) { return sizeof(T) == 1 ? rest_called(x, y) : rest_of(x, y); }
__device__ inline T floor_div(T x, T y) { return sizeof(T) == 1 ? floored_called(x, y) : floored(x, y); }

// By squaring, wrapping. A negative exponent gives the inverse, cut towards zero; that of 0 is 0.
__device__ inline T power(T x, T y) {
    T result = 1;
    if (is_negative(y) && magnitude(x) != 1) x = 0;
    for (u64 left = is_negative(y) ? 0 - (u64)y : (u64)y; left > 0; left >>= 1) {
        if (left & 1) result = times(result, x);
        x = times(x, x);
    }
    return result;
}
#endif

// The rest of a division whose quotient is rounded down.
__device__ inline W rem(W x, W y) {
    W rest = fmod_(x, y);
    return rest != 0 && is_negative(rest) != is_negative(y) ? plus(rest, y) : rest;
}

__device__ inline W rectified(W x) { return is_negative(x) || x == 0 ? (W)0 : x; }

// Each row as a function. What floats alone have does not exist for others.
#if IS_FLOAT
#define OF_FLOATS(...) __VA_ARGS__
#else
#define OF_FLOATS(...)
#endif
#define OF_any(...) __VA_ARGS__
#define OF_number(...) __VA_ARGS__
#define OF_float OF_FLOATS
#define OF_vector OF_FLOATS
#define OF_whole OF_FLOATS
#define OF_call OF_FLOATS
#define OF_single OF_FLOATS

#define ROW(name, kind, value, gradient)                                                                              \
    OF_##kind(__device__ inline W value_##name(W x) { return value; })                                                \
    OF_FLOATS(__device__ inline W gradient_##name(W g, W s) { return gradient; })
UNARY_ROWS
#undef ROW
#define ROW(name, kind, value) OF_##kind(__device__ inline W value_##name(W x, W y) { return value; })
BINARY_ROWS
#undef ROW

#define NO_CASE(name)

#define CASE(name) case OP_##name: EACH(value_##name((W)x[k], (W)y[k]))
#define CASE_any CASE
#define CASE_number CASE
#if IS_FLOAT
#define CASE_float CASE
#else
#define CASE_float NO_CASE
#endif
#define ROW(name, kind, value) CASE_##kind(name)
struct Binary {
    u32 op;
    template <int N> __device__ inline void run(T* d, const T* x, const T* y, const None*) const {
        switch (op) {
            BINARY_ROWS
        default: __builtin_unreachable();
        }
    }
};
#undef ROW
#undef CASE
#undef CASE_number

KERNEL(binary, Each) { map<T, T, T, None>(p, Binary{p.op}); }

#if !IS_FLOAT
enum { AND, OR, XOR, NOT, SHL, SHR, NOT_TRUTH };

__device__ inline T moved(u32 op, T x, T y) {
    bool is_far = is_negative(y) || (u64)y >= sizeof(T) * 8;
    if (op == SHL) return is_far ? (T)0 : (T)((u64)x << (u64)y);
    if (is_far) return is_negative(x) ? (T)-1 : (T)0;
    return (T)(x >> y);
}

struct Bits {
    u32 op;
    template <int N> __device__ inline void run(T* d, const T* x, const T* y, const None*) const {
        switch (op) {
        case AND: EACH((T)(x[k] & y[k]))
        case OR: EACH((T)(x[k] | y[k]))
        case XOR: EACH((T)(x[k] ^ y[k]))
        case NOT: EACH((T)~x[k])
        case NOT_TRUTH: EACH((T)(x[k] ^ 1))
        default: EACH(moved(op, x[k], y[k]))
        }
    }
};

KERNEL(bits, Each) { map<T, T, T, None>(p, Bits{p.op}); }
#endif

#define CASE(name) case OP_##name: EACH(value_##name((W)x[k]))
#define CASE_number CASE
#if IS_FLOAT
#define CASE_vector CASE
#define CASE_whole CASE
#else
#define CASE_vector NO_CASE
#define CASE_whole NO_CASE
#endif
#define CASE_call NO_CASE
#define CASE_single NO_CASE
#define ROW(name, kind, value, gradient) CASE_##kind(name)
struct Unary {
    u32 op;
    template <int N> __device__ inline void run(T* d, const T* x, const None*, const None*) const {
        switch (op) {
            UNARY_ROWS
        default: __builtin_unreachable();
        }
    }
};
#undef CASE

KERNEL(unary, Each) { map<T, T, None, None>(p, Unary{p.op}); }

struct Affine {
    W factor, summand;
    template <int N> __device__ inline void run(T* d, const T* x, const None*, const None*) const {
        do EACH(plus(times((W)x[k], factor), summand)) while (false);
    }
};

KERNEL(affine, Each) { map<T, T, None, None>(p, Affine{as<W>(p.x), as<W>(p.y)}); }

struct Clamp {
    T min, max;
    template <int N> __device__ inline void run(T* d, const T* x, const None*, const None*) const {
#pragma unroll
        for (int k = 0; k < N; ++k) {
            W raised = (W)x[k] < (W)min ? (W)min : (W)x[k];
            d[k] = raised > (W)max ? (W)max : raised;
        }
    }
};

KERNEL(clamp, Each) { map<T, T, None, None>(p, Clamp{as<T>(p.x), as<T>(p.y)}); }

struct Fill {
    T value;
    template <int N> __device__ inline void run(T* d, const None*, const None*, const None*) const {
        do EACH(value) while (false);
    }
};

KERNEL(fill, Each) { map<T, None, None, None>(p, Fill{as<T>(p.x)}); }

struct Copy {
    template <int N> __device__ inline void run(T* d, const T* x, const None*, const None*) const {
        do EACH(x[k]) while (false);
    }
};

KERNEL(copy, Each) { map<T, T, None, None>(p, Copy{}); }

// A copy in which elements follow each other along the last axis of the destination and along the axis before it in the
// source: by tiles, which are read along the one and written along the other. The axes before these count tiles.
KERNEL(transpose, Each) {
    const u32 tile = 32;
    alignas(8) __shared__ u8 room[tile * (tile + 1) * sizeof(T)];
    T* shared = (T*)room;
    u32 axis = p.rank - 2, x = threadIdx.x % tile, y = threadIdx.x / tile;
    u64 rows = p.dims[axis], cols = p.dims[axis + 1];
    u64 down = (rows + tile - 1) / tile, across = (cols + tile - 1) / tile;
    for (u64 i = blockIdx.x; i < p.count / (rows * cols) * down * across; i += gridDim.x) {
        u64 place = i / (down * across), top = i / across % down * tile, side = i % across * tile;
        const T* from = at<T>(p.a.ptr) + offset_of(axis, p.dims, p.a.strides, place) + (i64)(top + x);
        T* to = at<T>(p.dst.ptr) + offset_of(axis, p.dims, p.dst.strides, place) + (i64)(side + x);
        for (u32 k = y; k < tile; k += THREADS / tile) {
            if (top + x < rows && side + k < cols) {
                shared[k * (tile + 1) + x] = from[(i64)(side + k) * p.a.strides[axis + 1]];
            }
        }
        __syncthreads();
        for (u32 k = y; k < tile; k += THREADS / tile) {
            if (top + k < rows && side + x < cols) {
                to[(i64)(top + k) * p.dst.strides[axis]] = shared[x * (tile + 1) + k];
            }
        }
        __syncthreads();
    }
}

struct Compare {
    u32 op;
    template <int N> __device__ inline void run(u8* d, const T* x, const T* y, const None*) const {
        switch (op) {
        case EQ: EACH((W)x[k] == (W)y[k])
        case NE: EACH((W)x[k] != (W)y[k])
        case LT: EACH((W)x[k] < (W)y[k])
        case LE: EACH((W)x[k] <= (W)y[k])
        case GT: EACH((W)x[k] > (W)y[k])
        default: EACH((W)x[k] >= (W)y[k])
        }
    }
};

KERNEL(compare, Each) { map<u8, T, T, None>(p, Compare{p.op}); }

struct Choose {
    template <int N, class I> __device__ inline void run(T* d, const I* c, const T* yes, const T* no) const {
        do EACH(c[k] != 0 ? yes[k] : no[k]) while (false);
    }
};

KERNEL(choose, Each) {
    if (p.op == U8) map<T, u8, T, T>(p, Choose{});
    else if (p.op == U32) map<T, u32, T, T>(p, Choose{});
    else map<T, i64, T, T>(p, Choose{});
}

// Element by element from its number, into a destination that follows itself.
KERNEL(arange, Each) {
    for (u64 i = thread_number(); i < p.count; i += thread_count()) {
#if IS_FLOAT
        at<T>(p.dst.ptr)[i] = as<T>(p.x + (f64)(i64)i * p.y);
#else
        at<T>(p.dst.ptr)[i] = as<T>(plus(as<i64>(p.x), times((i64)i, as<i64>(p.y))));
#endif
    }
}

#if IS_FLOAT
struct Power {
    bool is_square;
    W exponent;
    template <int N> __device__ inline void run(T* d, const T* x, const None*, const None*) const {
        switch ((u32)is_square) {
        case 1: EACH((W)x[k] * (W)x[k])
        default: EACH(pow_((W)x[k], exponent))
        }
    }
};

KERNEL(powf, Each) { map<T, T, None, None>(p, Power{p.x == 2.0, as<W>(p.x)}); }

struct Quotient {
    bool is_of_number;
    W number;
    template <int N> __device__ inline void run(T* d, const T* x, const None*, const None*) const {
        switch ((u32)is_of_number) {
        case 1: EACH(number / (W)x[k])
        default: EACH((W)x[k] / number)
        }
    }
};

KERNEL(divide, Each) { map<T, T, None, None>(p, Quotient{p.y != 0, as<W>(p.x)}); }

// A long function, which stands by itself.
__device__ __noinline__ W curve(W x) { return expm1_(x); }

// The sum takes the sign of a 0.
struct Rectifier {
    u32 is_curved;
    W scale, below;
    template <int N> __device__ inline void run(T* d, const T* x, const None*, const None*) const {
        switch (is_curved) {
        case 1: EACH(((W)x[k] > 0 ? (W)x[k] : curve((W)x[k]) * below) * scale + (W)0)
        default: EACH(((W)x[k] > 0 ? (W)x[k] : (W)x[k] * below) * scale + (W)0)
        }
    }
};

KERNEL(rectifier, Each) { map<T, T, None, None>(p, Rectifier{p.op, as<W>(p.x), as<W>(p.y)}); }

// `s` is the operand; of NaN there is no slope.
struct RectifierGradient {
    u32 is_curved;
    W scale, below;
    __device__ inline W of(W s, W g, W slope) const {
        return is_nan(s) ? (W)0 : (s > 0 ? g : g * below * slope) + (W)0;
    }
    template <int N> __device__ inline void run(T* d, const T* s, const T* g, const None*) const {
        switch (is_curved) {
        case 1: EACH(of((W)s[k], (W)g[k] * scale, exp_((W)s[k])))
        default: EACH(of((W)s[k], (W)g[k] * scale, (W)1))
        }
    }
};

KERNEL(rectifier_grad, Each) { map<T, T, T, None>(p, RectifierGradient{p.op, as<W>(p.x), as<W>(p.y)}); }

// `s` is what the forward pass left, as the row says.
#define CASE(name) case OP_##name: EACH(gradient_##name((W)g[k], (W)s[k]))
struct Gradient {
    u32 op;
    template <int N> __device__ inline void run(T* d, const T* s, const T* g, const None*) const {
        switch (op) {
            UNARY_ROWS
        default: __builtin_unreachable();
        }
    }
};

KERNEL(unary_grad, Each) { map<T, T, T, None>(p, Gradient{p.op}); }
#undef CASE
#undef CASE_number
#undef CASE_vector
#undef CASE_whole
#undef CASE_call
#undef CASE_single

// The long functions, in kernels of their own: they need more registers than all others.
#define CASE(name) case OP_##name: return value_##name(x);
#define CASE_number NO_CASE
#define CASE_vector NO_CASE
#define CASE_whole NO_CASE
#define CASE_call CASE
#define CASE_single CASE
__device__ __noinline__ W called(u32 op, W x) {
    switch (op) {
        UNARY_ROWS
    default: __builtin_unreachable();
    }
}
#undef CASE

#define CASE(name) case OP_##name: return gradient_##name(g, s);
__device__ __noinline__ W called_gradient(u32 op, W g, W s) {
    switch (op) {
        UNARY_ROWS
    default: __builtin_unreachable();
    }
}

struct Called {
    u32 op;
    template <int N> __device__ inline void run(T* d, const T* x, const None*, const None*) const {
        do EACH(called(op, (W)x[k])) while (false);
    }
};

KERNEL(called, Each) { map<T, T, None, None>(p, Called{p.op}); }

struct CalledGradient {
    u32 op;
    template <int N> __device__ inline void run(T* d, const T* s, const T* g, const None*) const {
        do EACH(called_gradient(op, (W)g[k], (W)s[k])) while (false);
    }
};

KERNEL(called_grad, Each) { map<T, T, T, None>(p, CalledGradient{p.op}); }
#endif

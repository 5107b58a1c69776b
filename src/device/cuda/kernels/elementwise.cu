// Kernels that treat each element by itself. In place is `dst` being the operand `a`.
//
// The number of an operation is that of the enum in `kernel.rs` that names it. It is the same for all threads, so the
// choice costs little beside the memory.

enum { ADD, SUB, MUL, DIV, MAXIMUM, MINIMUM, POW, ATAN2 };
enum { NEG, ABS, SIGN, EXP, LOG, SQRT, SQR, RECIP, TANH, RELU, SIGMOID, SIN, COS, ERF, GELU_ERF, ERF_INV, LN_GAMMA,
       DIGAMMA };
enum { EQ, NE, LT, LE, GT, GE };
enum { GRAD_EXP, GRAD_LOG, GRAD_SQRT, GRAD_SQR, GRAD_RECIP, GRAD_TANH, GRAD_RELU, GRAD_SIGMOID, GRAD_ABS, GRAD_SIN,
       GRAD_COS };

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
        sum = -pi / tan(pi * (x - floor(x)));
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

__device__ __noinline__ W special(u32 op, W value) {
    f64 x = (f64)value;
    if (op == ERF) return (W)erf(x);
    if (op == GELU_ERF) return x == Bounds<f64>::low() ? (W)0 : (W)(x * 0.5 * erfc(-x * 0.70710678118654752440));
    if (op == ERF_INV) return (W)erf_inv(x);
    if (op == LN_GAMMA) return (W)lgamma(x);
    return (W)digamma(x);
}

// From e^-|x|, which cannot overflow.
__device__ inline W sigmoid(W x) {
    W small = exp_(-abs_(x));
    return (x < 0 ? small : (W)1) / ((W)1 + small);
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

// By squaring, wrapping. A negative exponent counts as 0.
__device__ inline T power(T x, T y) {
    T result = 1;
    for (u64 left = is_negative(y) ? 0 : (u64)y; left > 0; left >>= 1) {
        if (left & 1) result = times(result, x);
        x = times(x, x);
    }
    return result;
}
#endif

__device__ inline W rectified(W x) { return is_negative(x) || x == 0 ? (W)0 : x; }

struct Binary {
    u32 op;
    template <int N> __device__ inline void run(T* d, const T* x, const T* y, const None*) const {
        switch (op) {
        case ADD: EACH(plus(x[k], y[k]))
        case SUB: EACH(minus(x[k], y[k]))
        case MUL: EACH(times(x[k], y[k]))
        case DIV: EACH(over(x[k], y[k]))
        case MAXIMUM: EACH(larger(x[k], y[k]))
        case MINIMUM: EACH(smaller(x[k], y[k]))
#if IS_FLOAT
        case ATAN2: EACH(angle((W)x[k], (W)y[k]))
#endif
        default: EACH(power(x[k], y[k]))
        }
    }
};

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

struct Unary {
    u32 op;
    template <int N> __device__ inline void run(T* d, const T* x, const None*, const None*) const {
        switch (op) {
        case NEG: EACH(negated(x[k]))
        case ABS: EACH(magnitude(x[k]))
        case SIGN: EACH(sign(x[k]))
        case SQR: EACH(times(x[k], x[k]))
#if IS_FLOAT
        case EXP: EACH(exp_((W)x[k]))
        case LOG: EACH(log_((W)x[k]))
        case SQRT: EACH(sqrt_((W)x[k]))
        case RECIP: EACH((W)1 / (W)x[k])
        case TANH: EACH(tanh_((W)x[k]))
        case SIGMOID: EACH(sigmoid(x[k]))
        case SIN: EACH(sin_((W)x[k]))
        case COS: EACH(cos_((W)x[k]))
        case ERF:
        case GELU_ERF:
        case ERF_INV:
        case LN_GAMMA:
        case DIGAMMA: EACH(special(op, (W)x[k]))
#endif
        default: EACH(rectified(x[k]))
        }
    }
};

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

// `s` is what the forward pass left: its input or its output, as `kernel.rs` says.
struct Gradient {
    u32 op;
    template <int N> __device__ inline void run(T* d, const T* s, const T* g, const None*) const {
        switch (op) {
        case GRAD_EXP: EACH((W)s[k] * (W)g[k])
        case GRAD_LOG: EACH((W)g[k] / (W)s[k])
        case GRAD_SQRT: EACH((W)g[k] / ((W)2 * (W)s[k]))
        case GRAD_SQR: EACH((W)2 * (W)s[k] * (W)g[k])
        case GRAD_RECIP: EACH(-((W)g[k] * ((W)s[k] * (W)s[k])))
        case GRAD_TANH: EACH((W)g[k] * ((W)1 - (W)s[k] * (W)s[k]))
        case GRAD_RELU: EACH((W)s[k] > 0 ? (W)g[k] : (W)0)
        case GRAD_SIGMOID: EACH((W)g[k] * (W)s[k] * ((W)1 - (W)s[k]))
        case GRAD_ABS: EACH((W)g[k] * sign((W)s[k]))
        case GRAD_SIN: EACH((W)g[k] * cos_((W)s[k]))
        default: EACH(-((W)g[k] * sin_((W)s[k])))
        }
    }
};

KERNEL(unary_grad, Each) { map<T, T, T, None>(p, Gradient{p.op}); }
#endif

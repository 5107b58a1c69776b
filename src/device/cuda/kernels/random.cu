// Random numbers: Philox4x32-10, the same as on the CPU bit by bit (f64 normals: but for the last bits of a
// logarithm, a sine and a cosine).
//
// ```text
// key       seed, low word first
// counter   [block low, block high, words per element, replays of the graph]
// f32       one word:   element e is word e % 4 of block e / 4
// others    two words:  element e is words 2 (e % 2) and the next of block e / 2
// ```
//
// A thread makes a block of the generator, from which come 4 or 2 neighbours.

#define ROUNDS 10
// Halves are the numbers of f32, rounded.
#define IS_SINGLE (KIND == KIND_f32 || IS_HALF)
#if IS_SINGLE
#define WIDTH 1
#else
#define WIDTH 2
#endif
#define MADE (4 / WIDTH)

struct Words {
    u32 w[4];
};

__device__ inline Words philox(u64 block, u32 replay, u64 seed) {
    u32 a = (u32)block, b = (u32)(block >> 32), c = WIDTH, d = replay;
    u32 low = (u32)seed, high = (u32)(seed >> 32);
#pragma unroll
    for (int round = 0; round < ROUNDS; ++round) {
        u64 first = (u64)a * 0xD2511F53u, second = (u64)c * 0xCD9E8D57u;
        a = (u32)(second >> 32) ^ b ^ low;
        c = (u32)(first >> 32) ^ d ^ high;
        b = (u32)second;
        d = (u32)first;
        low += 0x9E3779B9u;
        high += 0xBB67AE85u;
    }
    return Words{{a, b, c, d}};
}

// Fills the destination with what `make` gives for the words of each block.
template <class Make> __device__ inline void draw(const Draw& p, Make make) {
    u32 replay = p.replay ? *at<u32>(p.replay) : 0, skip = (u32)(p.first % MADE);
    u64 blocks = (p.count + skip + MADE - 1) / MADE;
    bool is_packed = skip == 0 && p.dst % (sizeof(T) * MADE) == 0;
    for (u64 i = thread_number(); i < blocks; i += thread_count()) {
        // Numbers of elements wrap, as a u64 does.
        Words words = philox((p.first - skip + i * MADE) / MADE, replay, p.seed);
        Pack<T, MADE> made;
        make(words.w, made.e);
        u64 start = i * MADE;
        if (is_packed && start + MADE <= p.count) {
            at<Pack<T, MADE>>(p.dst)[i] = made;
            continue;
        }
#pragma unroll
        for (u32 k = 0; k < MADE; ++k) {
            if (start + k >= skip && start + k - skip < p.count) at<T>(p.dst)[start + k - skip] = made.e[k];
        }
    }
}

// 24 bits as a number in [0, 1).
__device__ inline f32 unit32(u32 word) { return (f32)(word >> 8) * (1.0f / 16777216.0f); }

// Two words as a number in [0, 1), of 53 bits.
__device__ inline f64 unit64(u32 low, u32 high) {
    return (f64)(((u64)low | ((u64)high << 32)) >> 11) * (1.0 / 9007199254740992.0);
}

// The number before a finite one.
template <class E, class Bits> __device__ inline E next_down(E x, Bits one) {
    if (x == 0) return with_bits((Bits)(one << (sizeof(E) * 8 - 1) | one));
    return with_bits((Bits)(x > 0 ? bits_of(x) - one : bits_of(x) + one));
}
__device__ inline f32 before(f32 x) { return next_down<f32, u32>(x, 1u); }
__device__ inline f64 before(f64 x) { return next_down<f64, u64>(x, 1ull); }

// From `low` on and below `high`; `low` if both are equal. By both parts, since the whole length may overflow.
template <class E> struct Range {
    E low, high, last;
    __device__ inline Range(E low, E high) : low(low), high(high), last(before(high)) {
        if (last < low) last = low;
    }
    __device__ inline E at(E unit) const {
        E value = low * ((E)1 - unit) + high * unit;
        value = value < last ? value : last;
        return value > low ? value : low;
    }
};

#if IS_SINGLE
// The type's number below another one that is not 0 or NaN, of which halves keep 8 or 16 bits.
__device__ inline f32 below(f32 x) {
#if IS_HALF
    T half = (T)x;
    half.bits = x > 0 ? half.bits - 1 : x < 0 ? half.bits + 1 : (1 << (8 * sizeof(T) - 1)) + 1;
    return half;
#else
    return before(x);
#endif
}

struct Uniform {
    Range<f32> range;
    f32 last;
    __device__ inline void operator()(const u32* w, T* d) const {
#pragma unroll
        for (int k = 0; k < MADE; ++k) {
            f32 value = (T)range.at(unit32(w[k]));
            // Rounding may reach the end.
            d[k] = (T)(IS_HALF && value >= range.high ? last : value);
        }
    }
};
#else
struct Uniform {
    Range<f64> range;
    __device__ inline void operator()(const u32* w, T* d) const {
#pragma unroll
        for (int k = 0; k < MADE; ++k) {
            f64 value = range.at(unit64(w[2 * k], w[2 * k + 1]));
            d[k] = as<T>(IS_FLOAT ? value : floor(value));
        }
    }
};
#endif

KERNEL(uniform, Draw) {
#if IS_SINGLE
    f32 low = as<T>(p.low), high = as<T>(p.high);
    draw(p, Uniform{Range<f32>(low, high), high > low ? below(high) : low});
#else
    draw(p, Uniform{Range<f64>(p.low, p.high)});
#endif
}

#if IS_SINGLE
// As `ln` of the CPU, for 0 < x <= 1.
__device__ inline f32 log_of_unit(f32 x) {
    const f32 sqrt_half = 0.70710678f;
    u32 bits = bits_of(x) - bits_of(sqrt_half);
    f32 n = (f32)((int)bits >> 23), f = with_bits((bits & 0x007fffffu) + bits_of(sqrt_half)) - 1.0f;
    f32 square = f * f, sum = 6.971611e-2f;
    sum = sum * f + -1.1479734e-1f;
    sum = sum * f + 1.168542e-1f;
    sum = sum * f + -1.2425687e-1f;
    sum = sum * f + 1.4249058e-1f;
    sum = sum * f + -1.6667802e-1f;
    sum = sum * f + 2.0000716e-1f;
    sum = sum * f + -2.4999997e-1f;
    sum = sum * f + 3.333333e-1f;
    f32 tail = square * f * sum + n * -2.1219444e-4f - 0.5f * square;
    return (f + tail) + n * 0.6933594f;
}

// As `sin_cos_turns` of the CPU: sine and cosine of `t` whole turns, 0 <= t < 1.
__device__ inline void sin_cos_turns(f32 t, f32& sine, f32& cosine) {
    const f32 round = 12582912.0f;
    f32 quarters = t * 4.0f, shifted = quarters + round;
    u32 quadrant = bits_of(shifted);
    f32 r = quarters - (shifted - round), square = r * r;
    f32 s = 1.582063e-4f, c = 9.036281e-4f;
    s = s * square + -4.681266e-3f;
    s = s * square + 7.969258e-2f;
    s = s * square + -6.459641e-1f;
    s = s * square + 1.5707964f;
    c = c * square + -2.0860069e-2f;
    c = c * square + 2.536692e-1f;
    c = c * square + -1.2337006f;
    c = c * square + 1.0f;
    s = r * s;
    f32 up = (quadrant & 1) ? c : s, across = (quadrant & 1) ? s : c;
    sine = (quadrant & 2) ? -up : up;
    cosine = ((quadrant + 1) & 2) ? -across : across;
}

struct Normal {
    f32 mean, std;
    __device__ inline void operator()(const u32* w, T* d) const {
#pragma unroll
        for (int k = 0; k < MADE; k += 2) {
            // All 32 bits, and never 0, for the radius: its tail reaches 6.7 deviations.
            f32 unit = ((f32)w[k] + 0.5f) * (1.0f / 4294967296.0f);
            f32 square = -2.0f * log_of_unit(unit), sine, cosine;
            f32 radius = sqrt_(square > 0.0f ? square : 0.0f);
            sin_cos_turns(unit32(w[k + 1]), sine, cosine);
            d[k] = (T)(mean + std * (radius * cosine));
            d[k + 1] = (T)(mean + std * (radius * sine));
        }
    }
};

KERNEL(normal, Draw) { draw(p, Normal{(f32)p.low, (f32)p.high}); }
#elif KIND == KIND_f64
struct Normal {
    f64 mean, std;
    __device__ inline void operator()(const u32* w, T* d) const {
        f64 radius = sqrt_(-2.0 * log_(1.0 - unit64(w[0], w[1]))), sine, cosine;
        sincos(unit64(w[2], w[3]) * 6.283185307179586, &sine, &cosine);
        d[0] = mean + std * (radius * cosine);
        d[1] = mean + std * (radius * sine);
    }
};

KERNEL(normal, Draw) { draw(p, Normal{p.low, p.high}); }
#endif

// Windows that slide over images: the columns that a convolution is a product with, and back.
//
// Images are `[B, channels, D, H, W]`; columns `[B, channels taps, places]`, contiguous.

// The place of a number on three axes.
struct Place {
    u64 d, h, w;
};

__device__ inline Place place_of(u64 i, const u64* dims) {
    Place at;
    at.w = i % dims[2];
    at.h = i / dims[2] % dims[1];
    at.d = i / dims[2] / dims[1];
    return at;
}

// Where a tap lies when the window is at a place of an axis; false if that is outside.
__device__ inline bool seen(const Slide& p, int axis, u64 place, u64 tap, u64& at) {
    u64 padded = place * p.stride[axis] + tap * p.dilation[axis];
    at = padded - p.padding[axis];
    return padded >= p.padding[axis] && at < p.ins[axis];
}

// At which place of the window a tap sees an element of an axis; false if at none.
__device__ inline bool seer(const Slide& p, int axis, u64 at, u64 tap, u64& place) {
    u64 padded = at + p.padding[axis], before = tap * p.dilation[axis];
    if (padded < before || (padded - before) % p.stride[axis] != 0) return false;
    place = (padded - before) / p.stride[axis];
    return place < p.outs[axis];
}

KERNEL(unfold, Slide) {
    u64 places = p.outs[0] * p.outs[1] * p.outs[2], taps = p.size[0] * p.size[1] * p.size[2];
    for (u64 i = thread_number(); i < p.count; i += thread_count()) {
        u64 row = i / places, plane = row / taps;
        Place place = place_of(i % places, p.outs), tap = place_of(row % taps, p.size);
        u64 d, h, w;
        T value = (T)0;
        if (seen(p, 0, place.d, tap.d, d) && seen(p, 1, place.h, tap.h, h) && seen(p, 2, place.w, tap.w, w)) {
            const i64* steps = p.src.strides;
            value = at<T>(p.src.ptr)[(i64)(plane / p.channels) * steps[0] + (i64)(plane % p.channels) * steps[1] +
                                     (i64)d * steps[2] + (i64)h * steps[3] + (i64)w * steps[4]];
        }
        at<T>(p.dst)[i] = value;
    }
}

KERNEL(fold, Slide) {
    u64 places = p.outs[0] * p.outs[1] * p.outs[2], taps = p.size[0] * p.size[1] * p.size[2];
    u64 pixels = p.ins[0] * p.ins[1] * p.ins[2];
    for (u64 i = thread_number(); i < p.count; i += thread_count()) {
        const T* rows = at<T>(p.src.ptr) + i / pixels * taps * places;
        Place pixel = place_of(i % pixels, p.ins);
        W sum = (W)0;
        for (u64 kd = 0; kd < p.size[0]; ++kd) {
            u64 d, h, w;
            if (!seer(p, 0, pixel.d, kd, d)) continue;
            for (u64 kh = 0; kh < p.size[1]; ++kh) {
                if (!seer(p, 1, pixel.h, kh, h)) continue;
                for (u64 kw = 0; kw < p.size[2]; ++kw) {
                    if (!seer(p, 2, pixel.w, kw, w)) continue;
                    u64 tap = (kd * p.size[1] + kh) * p.size[2] + kw;
                    sum = plus(sum, (W)rows[tap * places + (d * p.outs[1] + h) * p.outs[2] + w]);
                }
            }
        }
        at<T>(p.dst)[i] = (T)sum;
    }
}

// -- Pooling --------------------------------------------------------------------------------------------------------

// What a place covers of an axis: from `first` on, up to `end`.
__device__ inline void span(const Slide& p, int axis, u64 place, u64& first, u64& end) {
    if (p.adaptive) {
        first = place * p.ins[axis] / p.outs[axis];
        end = ((place + 1) * p.ins[axis] + p.outs[axis] - 1) / p.outs[axis];
        return;
    }
    u64 start = place * p.stride[axis], stop = start + p.size[axis];
    first = start > p.padding[axis] ? start - p.padding[axis] : 0;
    end = stop > p.padding[axis] ? stop - p.padding[axis] : 0;
    if (end > p.ins[axis]) end = p.ins[axis];
}

// The places that cover an element of an axis.
__device__ inline void cover(const Slide& p, int axis, u64 at, u64& first, u64& end) {
    if (p.adaptive) {
        first = at * p.outs[axis] / p.ins[axis];
        end = ((at + 1) * p.outs[axis] + p.ins[axis] - 1) / p.ins[axis];
        return;
    }
    u64 padded = at + p.padding[axis];
    first = padded + 1 > p.size[axis] ? (padded + 1 - p.size[axis] + p.stride[axis] - 1) / p.stride[axis] : 0;
    end = padded / p.stride[axis] + 1;
    if (end > p.outs[axis]) end = p.outs[axis];
}

enum { MAX, MEAN };

KERNEL(pool, Slide) {
    u64 places = p.outs[0] * p.outs[1] * p.outs[2];
    for (u64 i = thread_number(); i < p.count; i += thread_count()) {
        u64 plane = i / places;
        Place place = place_of(i % places, p.outs);
        const i64* steps = p.src.strides;
        const T* base =
            at<T>(p.src.ptr) + (i64)(plane / p.channels) * steps[0] + (i64)(plane % p.channels) * steps[1];
        u64 d0, d1, h0, h1, w0, w1;
        span(p, 0, place.d, d0, d1);
        span(p, 1, place.h, h0, h1);
        span(p, 2, place.w, w0, w1);
        W best = Bounds<W>::low(), part = (W)0;
        f64 sum = 0;
        u64 found = ~0ull;
        for (u64 d = d0; d < d1; ++d) {
            for (u64 h = h0; h < h1; ++h) {
                for (u64 w = w0; w < w1; ++w) {
                    W x = base[(i64)d * steps[2] + (i64)h * steps[3] + (i64)w * steps[4]];
                    if (p.op == MEAN) {
                        part = plus(part, x);
                        // Each 64, or a row, go to a sum of doubles: no sum of many is one chain of floats.
                        if (w + 1 == w1 || w % 64 == 0) {
                            sum += (f64)part;
                            part = (W)0;
                        }
                        continue;
                    }
                    if (x > best || found == ~0ull || (is_nan(x) && !is_nan(best))) {
                        best = x;
                        found = (d * p.ins[1] + h) * p.ins[2] + w;
                    }
                }
            }
        }
        if (p.op == MEAN) best = (W)(sum / (f64)((d1 - d0) * (h1 - h0) * (w1 - w0)));
        at<T>(p.dst)[i] = (T)best;
        if (p.ids) at<u32>(p.ids)[i] = (u32)found;
    }
}

// An element takes what the places that cover it give: no two threads write the same one.
KERNEL(pool_grad, Slide) {
    u64 places = p.outs[0] * p.outs[1] * p.outs[2], pixels = p.ins[0] * p.ins[1] * p.ins[2];
    for (u64 i = thread_number(); i < p.count; i += thread_count()) {
        u64 own = i % pixels, first = i / pixels * places;
        Place pixel = place_of(own, p.ins);
        u64 d0, d1, h0, h1, w0, w1;
        cover(p, 0, pixel.d, d0, d1);
        cover(p, 1, pixel.h, h0, h1);
        cover(p, 2, pixel.w, w0, w1);
        W sum = (W)0;
        for (u64 d = d0; d < d1; ++d) {
            for (u64 h = h0; h < h1; ++h) {
                for (u64 w = w0; w < w1; ++w) {
                    u64 place = first + (d * p.outs[1] + h) * p.outs[2] + w;
                    W grad = at<T>(p.src.ptr)[place];
                    if (p.ids) {
                        if (at<u32>(p.ids)[place] == own) sum = plus(sum, grad);
                        continue;
                    }
                    u64 a0, a1, b0, b1, c0, c1;
                    span(p, 0, d, a0, a1);
                    span(p, 1, h, b0, b1);
                    span(p, 2, w, c0, c1);
                    sum = plus(sum, (W)(grad / (W)((a1 - a0) * (b1 - b0) * (c1 - c0))));
                }
            }
        }
        at<T>(p.dst)[i] = (T)sum;
    }
}

// -- Other sizes ----------------------------------------------------------------------------------------------------

enum { NEAREST, LINEAR };

// The two elements of an axis that a place lies between, and how near it is to the second one. `axis` 1 or 2.
__device__ inline void between(const Slide& p, int axis, u64 place, u64& first, u64& second, f64& weight) {
    f64 at = ((f64)place + p.shift) * p.scale[axis - 1] - p.shift, last = (f64)(p.ins[axis] - 1);
    at = at > 0 ? at : 0;
    at = at < last ? at : last;
    first = (u64)at;
    second = first + 1 < p.ins[axis] ? first + 1 : p.ins[axis] - 1;
    weight = at - (f64)first;
}

#if IS_FLOAT
__device__ inline W blend(W a, W b, f64 weight) {
    return weight == 0 ? a : (W)(a * (W)(1.0 - weight) + b * (W)weight);
}

__device__ inline W between_four(const Slide& p, const T* base, Place place) {
    const i64* steps = p.src.strides;
    u64 top, bottom, left, right;
    f64 down, across;
    between(p, 1, place.h, top, bottom, down);
    between(p, 2, place.w, left, right, across);
    const T *upper = base + (i64)top * steps[3], *lower = base + (i64)bottom * steps[3];
    i64 l = (i64)left * steps[4], r = (i64)right * steps[4];
    return blend(blend(upper[l], upper[r], across), blend(lower[l], lower[r], across), down);
}

// How much a place of an axis takes of an element.
__device__ inline W share(const Slide& p, int axis, u64 place, u64 at) {
    u64 first, second;
    f64 weight;
    between(p, axis, place, first, second, weight);
    W sum = (W)0;
    if (first == at) sum += (W)(1.0 - weight);
    if (second == at) sum += (W)weight;
    return sum;
}

// The places of an axis that may take something of an element.
__device__ inline void takers(const Slide& p, int axis, u64 at, u64& first, u64& end) {
    first = 0;
    end = p.outs[axis];
    f64 scale = p.scale[axis - 1];
    if (scale <= 0) return;
    f64 low = ((f64)at - 1 + p.shift) / scale - p.shift - 1, high = ((f64)at + 1 + p.shift) / scale - p.shift + 2;
    if (at > 0 && low > 0) first = (u64)low;
    if (at + 1 < p.ins[axis] && high < (f64)end) end = (u64)high;
}
#endif

KERNEL(resize, Slide) {
    u64 places = p.outs[0] * p.outs[1] * p.outs[2];
    for (u64 i = thread_number(); i < p.count; i += thread_count()) {
        u64 plane = i / places;
        Place place = place_of(i % places, p.outs);
        const i64* steps = p.src.strides;
        const T* base =
            at<T>(p.src.ptr) + (i64)(plane / p.channels) * steps[0] + (i64)(plane % p.channels) * steps[1];
#if IS_FLOAT
        if (p.op == LINEAR) {
            at<T>(p.dst)[i] = (T)between_four(p, base, place);
            continue;
        }
#endif
        u64 h = place.h * p.ins[1] / p.outs[1], w = place.w * p.ins[2] / p.outs[2];
        at<T>(p.dst)[i] = base[(i64)h * steps[3] + (i64)w * steps[4]];
    }
}

#if IS_FLOAT
KERNEL(resize_grad, Slide) {
    u64 places = p.outs[1] * p.outs[2], pixels = p.ins[1] * p.ins[2];
    for (u64 i = thread_number(); i < p.count; i += thread_count()) {
        Place pixel = place_of(i % pixels, p.ins);
        const T* grad = at<T>(p.src.ptr) + i / pixels * places;
        u64 h0, h1, w0, w1;
        W sum = (W)0;
        if (p.op == LINEAR) {
            takers(p, 1, pixel.h, h0, h1);
            takers(p, 2, pixel.w, w0, w1);
        } else {
            h0 = (pixel.h * p.outs[1] + p.ins[1] - 1) / p.ins[1];
            h1 = ((pixel.h + 1) * p.outs[1] + p.ins[1] - 1) / p.ins[1];
            w0 = (pixel.w * p.outs[2] + p.ins[2] - 1) / p.ins[2];
            w1 = ((pixel.w + 1) * p.outs[2] + p.ins[2] - 1) / p.ins[2];
        }
        for (u64 h = h0; h < h1; ++h) {
            W line = p.op == LINEAR ? share(p, 1, h, pixel.h) : (W)1;
            for (u64 w = w0; w < w1; ++w) {
                W by = p.op == LINEAR ? share(p, 2, w, pixel.w) : (W)1;
                if (by != 0 && line != 0) sum += (W)grad[h * p.outs[2] + w] * line * by;
            }
        }
        at<T>(p.dst)[i] = (T)sum;
    }
}
#endif

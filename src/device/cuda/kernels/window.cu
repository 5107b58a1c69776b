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
        T sum = (T)0;
        for (u64 kd = 0; kd < p.size[0]; ++kd) {
            u64 d, h, w;
            if (!seer(p, 0, pixel.d, kd, d)) continue;
            for (u64 kh = 0; kh < p.size[1]; ++kh) {
                if (!seer(p, 1, pixel.h, kh, h)) continue;
                for (u64 kw = 0; kw < p.size[2]; ++kw) {
                    if (!seer(p, 2, pixel.w, kw, w)) continue;
                    u64 tap = (kd * p.size[1] + kh) * p.size[2] + kw;
                    sum = plus(sum, rows[tap * places + (d * p.outs[1] + h) * p.outs[2] + w]);
                }
            }
        }
        at<T>(p.dst)[i] = sum;
    }
}

// Running sums, products, extremes and logarithms of sums along an axis, and the gradient of products.
//
// A block takes a line, THREADS elements at a time: each tile is scanned in shared memory, and what it ends with is
// carried to the next one. Of floats all but extremes is computed in f64.

#if IS_FLOAT
typedef f64 Kept;
#else
typedef T Kept;
#endif

enum { SUM, PROD, MAX, MIN, LOG_SUM_EXP };

#if IS_FLOAT
// Equal ones may be infinite, and have no difference then.
__device__ __noinline__ f64 log_add_exp(f64 x, f64 y) {
    f64 apart = x == y ? 0 : x - y;
    return (x > y ? x : y) + log1p(exp_(-abs_(apart)));
}
#endif

// An element with its place on the line.
struct Best {
    Kept value;
    u32 place;
};

__device__ inline bool beats(u32 op, Kept x, Kept best) {
    bool is_beyond = op == MAX ? x > best : x < best;
    return is_beyond || (is_nan(x) && !is_nan(best));
}

// What two neighbouring parts of a line have together.
__device__ inline Best join(u32 op, Best first, Best second) {
    if (op == SUM) return Best{plus(first.value, second.value), 0};
    if (op == PROD) return Best{times(first.value, second.value), 0};
#if IS_FLOAT
    if (op == LOG_SUM_EXP) return Best{log_add_exp(first.value, second.value), 0};
#endif
    return beats(op, second.value, first.value) ? second : first;
}

KERNEL(scan, Scan) {
    __shared__ Best parts[2][THREADS];
    u32 own = threadIdx.x;
    for (u64 line = blockIdx.x; line < p.lines; line += gridDim.x) {
        const T* src = at<T>(p.src.ptr) + offset_of(p.rank, p.dims, p.src.strides, line);
        i64 to = offset_of(p.rank, p.dims, p.dst.strides, line);
        Best carried = {};
        for (u64 first = 0; first < p.len; first += THREADS) {
            u64 i = first + own, place = p.reverse ? p.len - 1 - i : i;
            u32 count = p.len - first < THREADS ? (u32)(p.len - first) : THREADS, from = 0;
            if (own < count) parts[0][own] = Best{(Kept)src[(i64)place * p.steps[0]], (u32)place};
            __syncthreads();
            for (u32 reach = 1; reach < count; reach *= 2) {
                if (own < count) {
                    Best mine = parts[from][own];
                    parts[1 - from][own] = own >= reach ? join(p.op, parts[from][own - reach], mine) : mine;
                }
                from = 1 - from;
                __syncthreads();
            }
            if (own < count) {
                Best all = first == 0 ? parts[from][own] : join(p.op, carried, parts[from][own]);
                at<T>(p.dst.ptr)[to + (i64)place * p.steps[2]] = as<T>(all.value);
                if (p.ids) at<u32>(p.ids)[to + (i64)place * p.steps[2]] = all.place;
            }
            Best last = parts[from][count - 1];
            carried = first == 0 ? last : join(p.op, carried, last);
            __syncthreads();
        }
    }
}

#if IS_FLOAT
// An element of the destination as bits.
#if KIND == KIND_f64
typedef u64 Piece;
#elif KIND == KIND_f32
typedef u32 Piece;
#elif KIND == KIND_f8e4m3
typedef u8 Piece;
#else
typedef u16 Piece;
#endif

// A thread for each line, forwards and back again. Products are f64: between large numbers and a 0 those of `T` would
// be infinite. What stands before each eight elements, but for the last ones, waits in their places of the destination.
KERNEL(prod_grad, Scan) {
    const u32 group = 8, pieces = 8 / sizeof(Piece), bits = 8 * sizeof(Piece);
    for (u64 line = thread_number(); line < p.lines; line += thread_count()) {
        const T* src = at<T>(p.src.ptr) + offset_of(p.rank, p.dims, p.src.strides, line);
        const T* grad = at<T>(p.grad.ptr) + offset_of(p.rank, p.dims, p.grad.strides, line);
        i64 to = offset_of(p.rank, p.dims, p.dst.strides, line);
        f64 products[group], before = 1, behind = 0;
        u64 first = 0;
        for (; first + group < p.len; first += group) {
            for (u32 k = 0; k < pieces; ++k) {
                at<Piece>(p.dst.ptr)[to + (i64)(first + k) * p.steps[2]] = (Piece)(bits_of(before) >> k * bits);
            }
            for (u32 k = 0; k < group; ++k) before *= (f64)src[(i64)(first + k) * p.steps[0]];
        }
        for (u64 end = p.len; end > 0; end = first, first -= group) {
            if (end < p.len) {
                u64 kept = 0;
                for (u32 k = 0; k < pieces; ++k) {
                    kept |= (u64)at<Piece>(p.dst.ptr)[to + (i64)(first + k) * p.steps[2]] << k * bits;
                }
                before = with_bits(kept);
            }
            for (u64 i = first; i < end; ++i) {
                products[i - first] = before;
                before *= (f64)src[(i64)i * p.steps[0]];
            }
            for (u64 i = end; i-- > first;) {
                behind += (f64)grad[(i64)i * p.steps[1]];
                at<T>(p.dst.ptr)[to + (i64)i * p.steps[2]] = as<T>(products[i - first] * behind);
                behind *= (f64)src[(i64)i * p.steps[0]];
            }
        }
    }
}
#endif

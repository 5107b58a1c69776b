// Softmax over rows, its logarithm, the cross entropy, and their gradients.
//
// A row is shifted by its largest element before anything is raised, so that no finite input overflows. `lanes`
// threads share a row: a few for a row of ten classes, a warp for a longer one, the whole block for a long one. A
// block goes on to its next rows together, so that all of its threads meet at every exchange.

// How a block divides rows among its threads.
struct RowSplit {
    u32 lanes, lane, slots, slot;
};

__device__ inline RowSplit row_split(const Rows& p) {
    RowSplit d;
    d.lanes = p.cols <= 32 ? 8 : p.cols <= 1024 ? 32 : THREADS;
    d.lane = threadIdx.x % d.lanes;
    d.slots = THREADS / d.lanes;
    d.slot = threadIdx.x / d.lanes;
    return d;
}

struct Add {
    template <class E> static __device__ inline E join(E a, E b) { return a + b; }
};

// The larger one that is a number.
struct Top {
    template <class E> static __device__ inline E join(E a, E b) { return b > a ? b : a; }
};

// What the lanes of a row have, joined, for all of them. `shared` has a place for each warp.
template <class Op> __device__ inline W among(const RowSplit& d, W* shared, W mine) {
    u32 width = d.lanes < 32 ? d.lanes : 32;
    for (u32 mask = width / 2; mask > 0; mask /= 2) mine = Op::join(mine, __shfl_xor_sync(~0u, mine, mask));
    if (d.lanes <= 32) return mine;
    __syncthreads();
    if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = mine;
    __syncthreads();
    mine = shared[0];
    for (u32 i = 1; i < THREADS / 32; ++i) mine = Op::join(mine, shared[i]);
    return mine;
}

// One row: its elements, or none if the thread has no row in this turn.
struct Row {
    u64 number, cols;
    bool is_used;
};

__device__ inline Row row(const Rows& p, const RowSplit& d, u64 turn) {
    Row r;
    r.number = turn * d.slots + d.slot;
    r.is_used = r.number < p.rows;
    r.cols = r.is_used ? p.cols : 0;
    return r;
}

__device__ inline u64 turns(const Rows& p, const RowSplit& d) { return (p.rows + d.slots - 1) / d.slots; }

__device__ inline const T* source(const Ref& ref, const Row& r) {
    return at<T>(ref.ptr) + (r.is_used ? (i64)r.number * ref.strides[0] : 0);
}

__device__ inline T* target(const Rows& p, const Row& r) {
    return at<T>(p.dst.ptr) + (r.is_used ? r.number * p.cols : 0);
}

// Calls `f` with each column of a lane and its element. Some are read before the first of them is used, so that the
// memory has work.
template <class Use> __device__ inline void columns(const Row& r, const RowSplit& d, const T* x, i64 step, Use f) {
    const u32 most = 4;
    u64 c = d.lane;
    for (; c + (most - 1) * d.lanes < r.cols; c += most * d.lanes) {
        T next[most];
#pragma unroll
        for (u32 k = 0; k < most; ++k) next[k] = x[(i64)(c + k * d.lanes) * step];
#pragma unroll
        for (u32 k = 0; k < most; ++k) f(c + k * d.lanes, (W)next[k]);
    }
    for (; c < r.cols; c += d.lanes) f(c, (W)x[(i64)c * step]);
}

// The largest element of a row, and the sum of all powers once it was subtracted.
__device__ inline void raise(const Row& r, const RowSplit& d, const T* x, i64 step, W* shared, W& top, W& sum) {
    W mine = Bounds<W>::low();
    columns(r, d, x, step, [&](u64, W value) { mine = Top::join(mine, value); });
    top = among<Top>(d, shared, mine);
    W total = 0;
    columns(r, d, x, step, [&](u64, W value) { total += exp_(value - top); });
    sum = among<Add>(d, shared, total);
}

KERNEL(softmax, Rows) {
    __shared__ W shared[THREADS / 32];
    RowSplit d = row_split(p);
    for (u64 turn = blockIdx.x; turn < turns(p, d); turn += gridDim.x) {
        Row r = row(p, d, turn);
        const T* x = source(p.a, r);
        T* to = target(p, r);
        W top, sum;
        i64 step = p.a.strides[1];
        raise(r, d, x, step, shared, top, sum);
        if (p.op) {
            // One after the other: their sum would round away what is small beside a large element.
            W log = log_(sum);
            columns(r, d, x, step, [&](u64 c, W value) { to[c] = (T)(value - top - log); });
        } else {
            W factor = (W)1 / sum;
            columns(r, d, x, step, [&](u64 c, W value) { to[c] = (T)(exp_(value - top) * factor); });
        }
    }
}

// Softmax: `dst = out * (grad - sum(out * grad))`. Its logarithm: `dst = grad - e^out * sum(grad)`.
KERNEL(softmax_grad, Rows) {
    __shared__ W shared[THREADS / 32];
    RowSplit d = row_split(p);
    for (u64 turn = blockIdx.x; turn < turns(p, d); turn += gridDim.x) {
        Row r = row(p, d, turn);
        const T *y = source(p.a, r), *g = source(p.b, r);
        T* to = target(p, r);
        W mine = 0;
        i64 y_step = p.a.strides[1], g_step = p.b.strides[1];
        for (u64 c = d.lane; c < r.cols; c += d.lanes) {
            W grad = g[(i64)c * g_step];
            mine += p.op ? grad : (W)y[(i64)c * y_step] * grad;
        }
        W sum = among<Add>(d, shared, mine);
        for (u64 c = d.lane; c < r.cols; c += d.lanes) {
            W out = y[(i64)c * y_step], grad = g[(i64)c * g_step];
            to[c] = (T)(p.op ? grad - exp_(out) * sum : out * (grad - sum));
        }
    }
}

// The label of a row; reported if it is none.
__device__ inline bool label(const Rows& p, const Row& r, bool reports, u64& label) {
    if (!r.is_used) return false;
    i64 place = (i64)r.number * p.label_stride;
    i64 found = p.label_type == U8    ? (i64)at<u8>(p.labels)[place]
                : p.label_type == U32 ? (i64)at<u32>(p.labels)[place]
                                      : at<i64>(p.labels)[place];
    label = (u64)found;
    if (found >= 0 && label < p.cols) return true;
    if (reports) report(p.fault, p.op, found, p.cols);
    return false;
}

// The sum of what all threads have, for thread 0, in a tree.
__device__ inline f64 sum_of_block(f64* shared, f64 mine) {
    __syncthreads();
    shared[threadIdx.x] = mine;
    for (u32 half = THREADS / 2; half > 0; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half) shared[threadIdx.x] = mine += shared[threadIdx.x + half];
    }
    return mine;
}

// `dst` gets the probabilities, `loss` the mean of the rows' losses. A row with a bad label has no loss. Each block
// leaves the sum of its rows in its place of `scratch`; the last one adds them up.
KERNEL(cross_entropy, Rows) {
    __shared__ W shared[THREADS / 32];
    __shared__ f64 sums[THREADS];
    __shared__ u32 flag;
    RowSplit d = row_split(p);
    f64 total = 0;
    for (u64 turn = blockIdx.x; turn < turns(p, d); turn += gridDim.x) {
        Row r = row(p, d, turn);
        const T* x = source(p.a, r);
        T* to = target(p, r);
        W top, sum;
        i64 step = p.a.strides[1];
        raise(r, d, x, step, shared, top, sum);
        W factor = (W)1 / sum;
        for (u64 c = d.lane; c < r.cols; c += d.lanes) to[c] = (T)(exp_((W)x[(i64)c * step] - top) * factor);
        u64 at;
        if (d.lane == 0 && label(p, r, true, at)) total += (f64)log_(sum) + (f64)(top - (W)x[(i64)at * step]);
    }
    total = sum_of_block(sums, total);
    if (gridDim.x > 1) {
        volatile W* partials = at<W>(p.scratch);
        if (threadIdx.x == 0) partials[blockIdx.x] = (W)total;
        if (!is_last(p.ticket, gridDim.x, &flag)) return;
        total = 0;
        for (u32 i = threadIdx.x; i < gridDim.x; i += THREADS) total += (f64)partials[i];
        total = sum_of_block(sums, total);
    }
    if (threadIdx.x == 0) *at<T>(p.loss) = as<T>(total / (f64)p.rows);
}

// `dst = (probs - onehot(labels)) * grad / rows`; 0 in a row with a bad label.
KERNEL(cross_entropy_grad, Rows) {
    RowSplit d = row_split(p);
    W factor = (W)*at<T>(p.b.ptr) / (W)p.rows;
    for (u64 turn = blockIdx.x; turn < turns(p, d); turn += gridDim.x) {
        Row r = row(p, d, turn);
        const T* probs = source(p.a, r);
        T* to = target(p, r);
        u64 hit = 0;
        bool is_good = label(p, r, d.lane == 0, hit);
        for (u64 c = d.lane; c < r.cols; c += d.lanes) {
            W prob = probs[(i64)c * p.a.strides[1]];
            to[c] = (T)(is_good ? (c == hit ? prob - (W)1 : prob) * factor : (W)0);
        }
    }
}

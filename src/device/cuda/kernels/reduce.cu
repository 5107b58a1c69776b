// Reductions over any axes: one launch each.
//
// A block serves a group of THREADS / `lanes` outputs, `lanes` threads each; `parts` blocks share a group, each with
// its own stretch of the elements, and the one that is last joins what they found. Every order of joining is fixed by
// the shape, so that a result never depends on which block came first.
//
// A float sum is no long chain: each thread has ACCUMULATORS sums, begins them anew every STRETCH elements, and what
// threads found is joined in a tree.
//
// Elements that follow each other are read as packs of 16 bytes, ACCUMULATORS at a time: with less under way, the
// memory waits for the threads. Bytes and integers of 64 bits are read one by one: their packs do not fit the
// registers.

enum { SUM, MEAN, MAX, MIN };
#define ACCUMULATORS 4
#define STRETCH 1024
#define PACKED (sizeof(T) == 1 || (sizeof(T) == 8 && !IS_FLOAT) ? 1 : 16 / sizeof(T))
typedef Pack<T, PACKED> Elements;

// Which output a thread works for, and which stretch of its elements the block has.
struct Assignment {
    u32 slots, slot, lane, part;
    u64 group, output, from, to;
    bool is_used;
};

__device__ inline Assignment assignment(const Fold& p) {
    Assignment s;
    s.slots = THREADS / p.lanes;
    // Neighbouring threads read neighbouring elements: those of one output, or of neighbouring outputs.
    s.slot = p.lanes_first ? threadIdx.x / p.lanes : threadIdx.x % s.slots;
    s.lane = p.lanes_first ? threadIdx.x % p.lanes : threadIdx.x / s.slots;
    s.group = blockIdx.x / p.parts;
    s.part = blockIdx.x % p.parts;
    s.output = s.group * s.slots + s.slot;
    s.is_used = s.output < p.count;
    u64 share = (p.len + p.parts * PACKED - 1) / (p.parts * PACKED) * PACKED;
    s.from = s.part * share < p.len ? s.part * share : p.len;
    s.to = s.from + share < p.len ? s.from + share : p.len;
    return s;
}

// The place of a lane's partial result in shared memory.
__device__ inline u32 cell(const Assignment& s, u32 lane) { return lane * s.slots + s.slot; }

__device__ inline i64 element(const Fold& p, u64 j) {
    if (p.folded_rank <= 1) return (i64)j * p.folded_strides[0];
    return offset_of(p.folded_rank, p.folded_dims, p.folded_strides, j);
}

__device__ inline const T* elements(const Fold& p, const Assignment& s) {
    return at<T>(p.src) + (s.is_used ? offset_of(p.kept_rank, p.kept_dims, p.kept_strides, s.output) : 0);
}

struct Sum {
    static __device__ inline W empty() { return 0; }
    static __device__ inline W join(W a, W b) { return plus(a, b); }
};

struct Max {
    static __device__ inline W empty() { return Bounds<W>::low(); }
    static __device__ inline W join(W a, W b) { return larger(a, b); }
};

struct Min {
    static __device__ inline W empty() { return Bounds<W>::high(); }
    static __device__ inline W join(W a, W b) { return smaller(a, b); }
};

template <class Op> __device__ inline W fold_pack(W sum, const Elements& pack) {
#pragma unroll
    for (int e = 0; e < (int)PACKED; ++e) sum = Op::join(sum, (W)pack.e[e]);
    return sum;
}

// As `fold_lane`, of elements that follow each other from `source` on. Those that lie at no multiple of a pack are read
// one by one, and joined in the same order.
template <class Op> __device__ inline W fold_packs(const T* source, u64 count, u64 lane, u64 step) {
    W total = Op::empty();
    bool aligned = (u64)source % sizeof(Elements) == 0;
    auto pack_at = [=](u64 i) {
        if (aligned) return ((const Elements*)source)[i];
        Elements pack;
#pragma unroll
        for (int e = 0; e < (int)PACKED; ++e) pack.e[e] = source[i * PACKED + e];
        return pack;
    };
    u64 packs = count / PACKED, stretch = step * (STRETCH / PACKED);
    for (u64 start = 0; start < packs; start += stretch) {
        u64 end = start + stretch < packs ? start + stretch : packs, j = start + lane;
        W sums[ACCUMULATORS];
#pragma unroll
        for (int k = 0; k < ACCUMULATORS; ++k) sums[k] = Op::empty();
        for (; j + (ACCUMULATORS - 1) * step < end; j += ACCUMULATORS * step) {
            Elements next[ACCUMULATORS];
#pragma unroll
            for (int k = 0; k < ACCUMULATORS; ++k) next[k] = pack_at(j + k * step);
#pragma unroll
            for (int k = 0; k < ACCUMULATORS; ++k) sums[k] = fold_pack<Op>(sums[k], next[k]);
        }
        for (; j < end; j += step) sums[0] = fold_pack<Op>(sums[0], pack_at(j));
        total = Op::join(total, Op::join(Op::join(sums[0], sums[1]), Op::join(sums[2], sums[3])));
    }
    for (u64 i = packs * PACKED + lane; i < count; i += step) total = Op::join(total, (W)source[i]);
    return total;
}

// What one thread finds in its stretch.
template <class Op> __device__ inline W fold_lane(const Fold& p, const Assignment& s) {
    W total = Op::empty();
    if (!s.is_used) return total;
    const T* source = elements(p, s);
    bool dense = p.folded_rank <= 1 && p.folded_strides[0] == 1 && p.lanes_first;
    if (dense) return fold_packs<Op>(source + s.from, s.to - s.from, s.lane, p.lanes);
    u64 step = p.lanes;
    for (u64 start = s.from; start < s.to; start += step * STRETCH) {
        u64 end = start + step * STRETCH < s.to ? start + step * STRETCH : s.to, j = start + s.lane;
        W sums[ACCUMULATORS];
#pragma unroll
        for (int k = 0; k < ACCUMULATORS; ++k) sums[k] = Op::empty();
        for (; j < end; j += ACCUMULATORS * step) {
            W next[ACCUMULATORS];
#pragma unroll
            for (int k = 0; k < ACCUMULATORS; ++k) {
                u64 i = j + k * step;
                next[k] = i < end ? (W)source[element(p, i)] : Op::empty();
            }
#pragma unroll
            for (int k = 0; k < ACCUMULATORS; ++k) sums[k] = Op::join(sums[k], next[k]);
        }
        total = Op::join(total, Op::join(Op::join(sums[0], sums[1]), Op::join(sums[2], sums[3])));
    }
    return total;
}

// Joins the lanes of each output. The result is that of lane 0.
template <class Op> __device__ inline W fold_lanes(const Fold& p, const Assignment& s, W* shared, W mine) {
    __syncthreads();
    shared[cell(s, s.lane)] = mine;
    for (u32 half = p.lanes / 2; half > 0; half /= 2) {
        __syncthreads();
        if (s.lane < half) shared[cell(s, s.lane)] = mine = Op::join(mine, shared[cell(s, s.lane + half)]);
    }
    return mine;
}

template <class Op> __device__ inline void fold(const Fold& p, W* shared, u32* flag) {
    Assignment s = assignment(p);
    W found = fold_lanes<Op>(p, s, shared, fold_lane<Op>(p, s));
    bool writes = s.is_used && s.lane == 0;
    if (p.parts > 1) {
        volatile W* partials = at<W>(p.scratch) + s.output * p.parts;
        if (writes) partials[s.part] = found;
        if (!is_last(p.tickets + s.group * sizeof(u32), p.parts, flag)) return;
        found = Op::empty();
        for (u32 i = s.lane; s.is_used && i < p.parts; i += p.lanes) found = Op::join(found, partials[i]);
        found = fold_lanes<Op>(p, s, shared, found);
    }
    if (!writes) return;
#if IS_FLOAT
    if (p.op == MEAN) found /= (W)p.len;
#endif
    at<T>(p.dst)[s.output] = (T)found;
}

KERNEL(reduce, Fold) {
    __shared__ W shared[THREADS];
    __shared__ u32 flag;
    if (p.op == MAX) fold<Max>(p, shared, &flag);
    else if (p.op == MIN) fold<Min>(p, shared, &flag);
    else fold<Sum>(p, shared, &flag);
}

// An element and its number among those of its output; NOWHERE if there is none.
#define NOWHERE (~0ull)
struct Found {
    W value;
    u64 index;
};

// Whether `a` is the answer rather than `b`: NaN first, then the extreme, then the lower number.
__device__ inline bool wins(bool largest, Found a, Found b) {
    if (a.index == NOWHERE || b.index == NOWHERE) return b.index == NOWHERE;
    bool first = a.index < b.index;
    if (is_nan(a.value) || is_nan(b.value)) return is_nan(a.value) && (first || !is_nan(b.value));
    if (a.value == b.value) return first;
    return largest ? a.value > b.value : a.value < b.value;
}

__device__ inline Found arg_lane(const Fold& p, const Assignment& s) {
    Found best = {0, NOWHERE};
    if (!s.is_used) return best;
    const T* source = elements(p, s);
    for (u64 j = s.from + s.lane; j < s.to; j += p.lanes) {
        Found next = {(W)source[element(p, j)], j};
        if (wins(p.op, next, best)) best = next;
    }
    return best;
}

__device__ inline Found arg_lanes(const Fold& p, const Assignment& s, W* values, u64* indices, Found mine) {
    __syncthreads();
    values[cell(s, s.lane)] = mine.value;
    indices[cell(s, s.lane)] = mine.index;
    for (u32 half = p.lanes / 2; half > 0; half /= 2) {
        __syncthreads();
        if (s.lane >= half) continue;
        u32 theirs = cell(s, s.lane + half), own = cell(s, s.lane);
        Found other = {values[theirs], indices[theirs]};
        if (!wins(p.op, other, mine)) continue;
        values[own] = other.value;
        indices[own] = other.index;
        mine = other;
    }
    return mine;
}

KERNEL(arg_reduce, Fold) {
    __shared__ W values[THREADS];
    __shared__ u64 indices[THREADS];
    __shared__ u32 flag;
    Assignment s = assignment(p);
    Found found = arg_lanes(p, s, values, indices, arg_lane(p, s));
    bool writes = s.is_used && s.lane == 0;
    if (p.parts > 1) {
        // The indices of all partial results lie behind all values, from a multiple of 8 bytes on.
        u64 bytes = (p.count * p.parts * sizeof(W) + 7) / 8 * 8;
        volatile W* part_values = at<W>(p.scratch) + s.output * p.parts;
        volatile u64* part_indices = at<u64>(p.scratch + bytes) + s.output * p.parts;
        if (writes) {
            part_values[s.part] = found.value;
            part_indices[s.part] = found.index;
        }
        if (!is_last(p.tickets + s.group * sizeof(u32), p.parts, &flag)) return;
        found.index = NOWHERE;
        for (u32 i = s.lane; s.is_used && i < p.parts; i += p.lanes) {
            Found next = {part_values[i], part_indices[i]};
            if (wins(p.op, next, found)) found = next;
        }
        found = arg_lanes(p, s, values, indices, found);
    }
    if (writes) at<u32>(p.dst)[s.output] = (u32)found.index;
}

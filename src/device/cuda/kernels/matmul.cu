// Matrix products, for where there is no library for them: any strides, and several products at a time.
//
// A block makes tiles of TILE x TILE elements, a thread 4 x 4 of them. Slices of both operands, DEPTH deep, pass
// through shared memory; threads read them along whichever direction has neighbours.

#define TILE 64
#define DEPTH 16
#define EDGE (TILE + 4)

// A slice of a matrix: TILE lines along the result, DEPTH elements along the sum, 0 outside the matrix.
__device__ inline void stage(W* shared, const T* from, u64 line, u64 lines, i64 line_step, u64 deep, u64 depth,
                             i64 deep_step) {
    bool lines_first = line_step == 1 || line_step == -1;
#pragma unroll
    for (u32 turn = 0; turn < TILE * DEPTH / THREADS; ++turn) {
        u32 i = turn * THREADS + threadIdx.x;
        u32 l = lines_first ? i % TILE : i / DEPTH, k = lines_first ? i / TILE : i % DEPTH;
        bool is_inside = line + l < lines && deep + k < depth;
        shared[k * EDGE + l] = is_inside ? (W)from[(i64)(line + l) * line_step + (i64)(deep + k) * deep_step] : (W)0;
    }
}

__device__ inline void multiply(const W* left, const W* right, u32 row, u32 col, W (&sums)[4][4]) {
#pragma unroll
    for (u32 k = 0; k < DEPTH; ++k) {
        Pack<W, 4> a = *(const Pack<W, 4>*)(left + k * EDGE + row), b = *(const Pack<W, 4>*)(right + k * EDGE + col);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
#pragma unroll
            for (int j = 0; j < 4; ++j) sums[i][j] = fused(a.e[i], b.e[j], sums[i][j]);
        }
    }
}

KERNEL(matmul, Product) {
    alignas(32) __shared__ W left[DEPTH * EDGE];
    alignas(32) __shared__ W right[DEPTH * EDGE];
    u64 across = (p.n + TILE - 1) / TILE, down = (p.m + TILE - 1) / TILE;
    u32 row = threadIdx.x / 16 * 4, col = threadIdx.x % 16 * 4;
    for (u64 tile = blockIdx.x; tile < across * down * p.batch; tile += gridDim.x) {
        u64 place = tile / (across * down), top = tile / across % down * TILE, side = tile % across * TILE;
        const T* a = at<T>(p.a.ptr) + offset_of(p.rank, p.dims, p.a.strides, place);
        const T* b = at<T>(p.b.ptr) + offset_of(p.rank, p.dims, p.b.strides, place);
        W sums[4][4] = {};
        for (u64 deep = 0; deep < p.k; deep += DEPTH) {
            stage(left, a, top, p.m, p.a_row, deep, p.k, p.a_col);
            stage(right, b, side, p.n, p.b_col, deep, p.k, p.b_row);
            __syncthreads();
            multiply(left, right, row, col, sums);
            __syncthreads();
        }
        T* to = at<T>(p.dst) + place * p.m * p.n;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                u64 r = top + row + i, c = side + col + j;
                if (r < p.m && c < p.n) to[r * p.n + c] = (T)sums[i][j];
            }
        }
    }
}

// Rows with mean square 1, with or without their mean taken off, and the gradient. A block takes a row; sums are f64.

// The sum of what the threads of a block have, for all of them.
__device__ inline f64 total(f64* shared, f64 mine) {
    shared[threadIdx.x] = mine;
    __syncthreads();
    for (u32 half = THREADS / 2; half > 0; half /= 2) {
        if (threadIdx.x < half) shared[threadIdx.x] += shared[threadIdx.x + half];
        __syncthreads();
    }
    f64 sum = shared[0];
    __syncthreads();
    return sum;
}

// Mean of a row, and what it is multiplied with.
struct Even {
    f64 mean, by;
};

__device__ inline Even even(const Norm& p, const T* row, f64* shared) {
    f64 sum = 0, squares = 0;
    Even e = {};
    if (p.centred) {
        for (u64 i = threadIdx.x; i < p.cols; i += THREADS) sum += (f64)row[(i64)i * p.src.strides[1]];
        e.mean = total(shared, sum) / (f64)p.cols;
    }
    for (u64 i = threadIdx.x; i < p.cols; i += THREADS) {
        f64 x = (f64)row[(i64)i * p.src.strides[1]] - e.mean;
        squares += x * x;
    }
    e.by = 1.0 / sqrt_(total(shared, squares) / (f64)p.cols + p.eps);
    return e;
}

__device__ inline f64 scale_at(const Norm& p, u64 i) {
    return p.scale ? (f64)at<T>(p.scale)[(i64)i * p.scale_step] : 1.0;
}

KERNEL(norm, Norm) {
    __shared__ f64 shared[THREADS];
    for (u64 r = blockIdx.x; r < p.rows; r += gridDim.x) {
        const T* row = at<T>(p.src.ptr) + (i64)r * p.src.strides[0];
        Even e = even(p, row, shared);
        for (u64 i = threadIdx.x; i < p.cols; i += THREADS) {
            f64 y = ((f64)row[(i64)i * p.src.strides[1]] - e.mean) * e.by * scale_at(p, i);
            if (p.shift) y += (f64)at<T>(p.shift)[(i64)i * p.shift_step];
            at<T>(p.dst)[r * p.cols + i] = as<T>(y);
        }
    }
}

KERNEL(norm_grad, Norm) {
    __shared__ f64 shared[THREADS];
    for (u64 r = blockIdx.x; r < p.rows; r += gridDim.x) {
        const T* row = at<T>(p.src.ptr) + (i64)r * p.src.strides[0];
        const T* grad = at<T>(p.grad.ptr) + (i64)r * p.grad.strides[0];
        Even e = even(p, row, shared);
        f64 sum = 0, slope = 0;
        for (u64 i = threadIdx.x; i < p.cols; i += THREADS) {
            f64 h = (f64)grad[(i64)i * p.grad.strides[1]] * scale_at(p, i);
            sum += h;
            slope += h * ((f64)row[(i64)i * p.src.strides[1]] - e.mean) * e.by;
        }
        sum = total(shared, sum) / (f64)p.cols;
        slope = total(shared, slope) / (f64)p.cols;
        for (u64 i = threadIdx.x; i < p.cols; i += THREADS) {
            f64 g = (f64)grad[(i64)i * p.grad.strides[1]], y = ((f64)row[(i64)i * p.src.strides[1]] - e.mean) * e.by;
            f64 h = g * scale_at(p, i) - (p.centred ? sum : 0.0) - y * slope;
            at<T>(p.dst)[r * p.cols + i] = as<T>(h * e.by);
            at<T>(p.products)[r * p.cols + i] = as<T>(g * y);
        }
    }
}

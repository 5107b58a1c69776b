// Steps of optimisers: one pass over parameters, gradients and state, all contiguous.

// One element, in what its type computes in.
template <class Fn> __device__ inline void one(Fn f, T& param, T grad, T& m, T& v) {
    W p = param, first = m, second = v;
    f.step(p, (W)grad, first, second);
    param = (T)p;
    m = (T)first;
    v = (T)second;
}

// Runs `f.step(param, grad, m, v)` for each element. Operands with the address 0 are left alone.
template <class Fn> __device__ inline void steps(const Step& p, Fn f) {
    constexpr int N = 16 / sizeof(T);
    u64 i = thread_number();
    if ((p.param | p.grad | p.m | p.v) % 16 == 0) {
        u64 packs = p.count / N;
        for (u64 pack = i; pack < packs; pack += thread_count()) {
            Pack<T, N> param = at<Pack<T, N>>(p.param)[pack], grad = at<Pack<T, N>>(p.grad)[pack], m = {}, v = {};
            if (p.m) m = at<Pack<T, N>>(p.m)[pack];
            if (p.v) v = at<Pack<T, N>>(p.v)[pack];
#pragma unroll
            for (int k = 0; k < N; ++k) one(f, param.e[k], grad.e[k], m.e[k], v.e[k]);
            at<Pack<T, N>>(p.param)[pack] = param;
            if (p.m) at<Pack<T, N>>(p.m)[pack] = m;
            if (p.v) at<Pack<T, N>>(p.v)[pack] = v;
        }
        i += packs * N;
    }
    for (; i < p.count; i += thread_count()) {
        T param = at<T>(p.param)[i], grad = at<T>(p.grad)[i], m = (T)0, v = (T)0;
        if (p.m) m = at<T>(p.m)[i];
        if (p.v) v = at<T>(p.v)[i];
        one(f, param, grad, m, v);
        at<T>(p.param)[i] = param;
        if (p.m) at<T>(p.m)[i] = m;
        if (p.v) at<T>(p.v)[i] = v;
    }
}

struct Descent {
    W rate, momentum, decay;
    bool has_velocity;
    __device__ inline void step(W& param, W grad, W& velocity, W&) const {
        grad = grad + decay * param;
        if (has_velocity) grad = velocity = momentum * velocity + grad;
        param = param - rate * grad;
    }
};

// `m` is the velocity, or 0; `a` its momentum; `v` is 0.
KERNEL(sgd, Step) { steps(p, Descent{(W)p.rate, (W)p.a, (W)p.decay, p.m != 0}); }

struct Moments {
    W rate, beta1, beta2, rest1, rest2, fix1, fix2, eps, decay;
    __device__ inline void step(W& param, W grad, W& m, W& v) const {
        m = beta1 * m + rest1 * grad;
        v = beta2 * v + rest2 * (grad * grad);
        W step = m * fix1 / (sqrt_(v * fix2) + eps);
        param = param - rate * (step + decay * param);
    }
};

// `a` and `b` are the betas. In a graph the corrections come from the number of its replays.
KERNEL(adam, Step) {
    __shared__ f64 fixes[2];
    f64 fix1 = p.fix1, fix2 = p.fix2;
    if (p.replay) {
        // Once for each block: powers of doubles are slow.
        if (threadIdx.x == 0) {
            f64 turns = (f64)(p.step + *at<u64>(p.replay));
            fixes[0] = 1.0 - pow(p.a, turns);
            fixes[1] = 1.0 - pow(p.b, turns);
        }
        __syncthreads();
        fix1 = fixes[0];
        fix2 = fixes[1];
    }
    steps(p, Moments{(W)p.rate, (W)p.a, (W)p.b, (W)(1.0 - p.a), (W)(1.0 - p.b), (W)(1.0 / fix1), (W)(1.0 / fix2),
                     (W)p.eps, (W)p.decay});
}

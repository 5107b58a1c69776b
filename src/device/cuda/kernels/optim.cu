// Steps of optimisers: one pass over parameters, gradients and what is kept, all contiguous. What each computes is
// `StepRule`'s.

// One element, in what its type computes in.
template <class Fn> __device__ inline void one(Fn f, T& param, T grad, T& m, T& v, T& h) {
    W p = param, first = m, second = v, third = h;
    f.step(p, (W)grad, first, second, third);
    param = (T)p;
    m = (T)first;
    v = (T)second;
    h = (T)third;
}

// Runs `f.step(param, grad, m, v, h)` for each element. Operands with the address 0 are left alone.
template <class Fn> __device__ inline void steps(const Step& p, Fn f) {
    constexpr int N = 16 / sizeof(T);
    u64 i = thread_number();
    if ((p.param | p.grad | p.m | p.v | p.h) % 16 == 0) {
        u64 packs = p.count / N;
        for (u64 pack = i; pack < packs; pack += thread_count()) {
            Pack<T, N> param = at<Pack<T, N>>(p.param)[pack], grad = at<Pack<T, N>>(p.grad)[pack];
            Pack<T, N> m = {}, v = {}, h = {};
            if (Fn::KEPT > 0 && p.m) m = at<Pack<T, N>>(p.m)[pack];
            if (Fn::KEPT > 1) v = at<Pack<T, N>>(p.v)[pack];
            if (Fn::KEPT > 2) h = at<Pack<T, N>>(p.h)[pack];
#pragma unroll
            for (int k = 0; k < N; ++k) one(f, param.e[k], grad.e[k], m.e[k], v.e[k], h.e[k]);
            at<Pack<T, N>>(p.param)[pack] = param;
            if (Fn::KEPT > 0 && p.m) at<Pack<T, N>>(p.m)[pack] = m;
            if (Fn::KEPT > 1) at<Pack<T, N>>(p.v)[pack] = v;
            if (Fn::KEPT > 2) at<Pack<T, N>>(p.h)[pack] = h;
        }
        i += packs * N;
    }
    for (; i < p.count; i += thread_count()) {
        T param = at<T>(p.param)[i], grad = at<T>(p.grad)[i], m = (T)0, v = (T)0, h = (T)0;
        if (Fn::KEPT > 0 && p.m) m = at<T>(p.m)[i];
        if (Fn::KEPT > 1) v = at<T>(p.v)[i];
        if (Fn::KEPT > 2) h = at<T>(p.h)[i];
        one(f, param, grad, m, v, h);
        at<T>(p.param)[i] = param;
        if (Fn::KEPT > 0 && p.m) at<T>(p.m)[i] = m;
        if (Fn::KEPT > 1) at<T>(p.v)[i] = v;
        if (Fn::KEPT > 2) at<T>(p.h)[i] = h;
    }
}

struct Descent {
    static constexpr int KEPT = 1;
    W rate, momentum, decay;
    bool has_velocity;
    __device__ inline void step(W& param, W grad, W& velocity, W&, W&) const {
        grad = grad + decay * param;
        if (has_velocity) grad = velocity = momentum * velocity + grad;
        param = param - rate * grad;
    }
};

// `m` is the velocity, or 0; `a` its momentum.
KERNEL(sgd, Step) { steps(p, Descent{(W)p.rate, (W)p.a, (W)p.decay, p.m != 0}); }

struct Nesterovs {
    static constexpr int KEPT = 1;
    W rate, momentum, ahead, back;
    __device__ inline void step(W& param, W grad, W& velocity, W&, W&) const {
        param = param - (ahead * (rate * grad) - back * velocity);
        velocity = momentum * velocity - rate * grad;
    }
};

KERNEL(nesterov, Step) { steps(p, Nesterovs{(W)p.rate, (W)p.a, (W)(1.0 + p.a), (W)(p.a * p.a)}); }

// The means of gradients and of their squares.
struct Means {
    W beta1, beta2, rest1, rest2;
    __device__ inline void follow(W grad, W& m, W& v) const {
        m = beta1 * m + rest1 * grad;
        v = beta2 * v + rest2 * (grad * grad);
    }
};

__device__ inline Means means(const Step& p) {
    return {(W)p.a, (W)p.b, (W)(1.0 - p.a), (W)(1.0 - p.b)};
}

// `1 - beta^t`, of both, and of the first one step later.
struct Fixes {
    f64 first, second, next;
};

// In a graph `t` counts its replays.
__device__ inline Fixes fixes(const Step& p) {
    if (!p.replay) return {p.fix1, p.fix2, p.next};
    __shared__ Fixes shared;
    // Once for each block: powers of doubles are slow.
    if (threadIdx.x == 0) {
        f64 turns = (f64)(p.step + *at<u64>(p.replay));
        shared = {1.0 - pow(p.a, turns), 1.0 - pow(p.b, turns), 1.0 - pow(p.a, turns + 1.0)};
    }
    __syncthreads();
    return shared;
}

struct Moments {
    static constexpr int KEPT = 2;
    Means means;
    W rate, fix1, fix2, eps, decay;
    __device__ inline void step(W& param, W grad, W& m, W& v, W&) const {
        means.follow(grad, m, v);
        W step = m * fix1 / (sqrt_(v * fix2) + eps);
        param = param - rate * (step + decay * param);
    }
};

// `a` and `b` are the betas, here and below.
KERNEL(adam, Step) {
    Fixes fix = fixes(p);
    steps(p, Moments{means(p), (W)p.rate, (W)(1.0 / fix.first), (W)(1.0 / fix.second), (W)p.eps, (W)p.decay});
}

struct Highest {
    static constexpr int KEPT = 3;
    Means means;
    W rate, eps;
    __device__ inline void step(W& param, W grad, W& m, W& v, W& h) const {
        means.follow(grad, m, v);
        h = h > v || h != h ? h : v;
        param = param - rate * (m / (sqrt_(h) + eps));
    }
};

KERNEL(ams_grad, Step) {
    Fixes fix = fixes(p);
    steps(p, Highest{means(p), (W)(p.rate * sqrt(fix.second) / fix.first), (W)p.eps});
}

struct Ahead {
    static constexpr int KEPT = 2;
    Means means;
    W rate, next, now, fix2, eps;
    __device__ inline void step(W& param, W grad, W& m, W& v, W&) const {
        means.follow(grad, m, v);
        param = param - rate * ((next * m + now * grad) / (sqrt_(v * fix2) + eps));
    }
};

KERNEL(nadam, Step) {
    Fixes fix = fixes(p);
    steps(p, Ahead{means(p), (W)p.rate, (W)(p.a / fix.next), (W)((1.0 - p.a) / fix.first), (W)(1.0 / fix.second), (W)p.eps});
}

struct Largest {
    static constexpr int KEPT = 2;
    W rate, beta1, beta2, rest1, eps;
    __device__ inline void step(W& param, W grad, W& m, W& u, W&) const {
        m = beta1 * m + rest1 * grad;
        W old = beta2 * u, now = grad < (W)0 ? -grad : grad;
        u = old > now || old != old ? old : now;
        param = param - rate * (m / (u + eps));
    }
};

KERNEL(ada_max, Step) {
    steps(p, Largest{(W)(p.rate / fixes(p).first), (W)p.a, (W)p.b, (W)(1.0 - p.a), (W)p.eps});
}

struct Squares {
    static constexpr int KEPT = 1;
    W rate, keep, share, eps;
    __device__ inline void step(W& param, W grad, W& s, W&, W&) const {
        s = keep * s + share * (grad * grad);
        param = param - rate * (grad / (sqrt_(s) + eps));
    }
};

// `a` is what stays of the squares, `b` the share of new ones.
KERNEL(rms_prop, Step) { steps(p, Squares{(W)p.rate, (W)p.a, (W)p.b, (W)p.eps}); }

struct Ratios {
    static constexpr int KEPT = 2;
    W rate, rho, rest, eps;
    __device__ inline void step(W& param, W grad, W& s, W& e, W&) const {
        s = rho * s + rest * (grad * grad);
        W step = grad * (sqrt_(e + eps) / sqrt_(s + eps));
        e = rho * e + rest * (step * step);
        param = param - rate * step;
    }
};

KERNEL(ada_delta, Step) { steps(p, Ratios{(W)p.rate, (W)p.a, (W)(1.0 - p.a), (W)p.eps}); }

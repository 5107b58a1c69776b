// Runs the text of the CUDA kernels on the CPU: compiled by g++ with this file in front, a family becomes a module.
//
//   g++ -std=c++17 -O1 -fPIC -fvisibility=hidden -ffp-contract=off -fsanitize=thread
//       --param=tsan-instrument-func-entry-exit=0 -DT=f32 -DF=f32 -include shim.hpp -include prelude.cu
//       -x c++ -c family.cu -o family_f32.o
//   g++ -shared family_f32.o -o family_f32.so
//
// Two commands, since linking with -fsanitize=thread would bring in that sanitizer's own runtime. Hidden, since
// modules of different types have functions of one name. A module exports for each kernel, for example `sum_f32`:
//
//   void sim_sum_f32(void** params, const unsigned* grid, const unsigned* block)   runs it, as cuLaunchKernel would
//   const unsigned sim_params_sum_f32[2]                                   1, the number of parameters, and its bytes
//
// and once `void sim_ranges(unsigned long long out[4])`: begin and end of the stacks that all kernel code runs on, and
// of shared memory. Every access of kernel code that is not one of this file calls `__tsan_read4(address)` and
// the like, which whoever loads the module defines, with `__tsan_init`. The hooks below are called where they exist.
//
// # How threads run
// Blocks run one after the other. A thread of a block is a plain call on the stack of a fiber, which goes on with the
// next thread when it returns; a thread that meets a barrier keeps its fiber, and the next one begins another. So
// kernels without barriers never switch stacks. When every thread has ended or waits, those at a barrier go on.
// A number other than 0 in the environment variable PRETEND_ORDER makes blocks and threads take their turns in another
// order, which that number chooses: what a kernel computes must not depend on it.
//
// # What is an error
// A barrier that threads of its block have passed by, and threads that wait in different places of the source. It is
// reported to `pretend_fault`, and the launch ends there. Shared memory holds 0xCB at the start of every block.

#pragma once

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#ifndef __x86_64__
#define SIM_UCONTEXT 1
#endif
#ifdef SIM_UCONTEXT
#include <ucontext.h>
#endif

// What this file does itself is no access of a kernel.
#define SIM __attribute__((no_sanitize("thread"), noinline, unused))
#define SIM_HOOK __attribute__((weak, visibility("default")))
#define SIM_EXPORT extern "C" __attribute__((no_sanitize("thread"), visibility("default")))

extern "C" {
// The running thread, or the number of barriers that it has passed, has changed.
SIM_HOOK void pretend_thread(unsigned block, unsigned thread, unsigned epoch);
// An atomic operation; it is no plain access.
SIM_HOOK void pretend_atomic(const void* address, unsigned long bytes);
SIM_HOOK void pretend_fence();
SIM_HOOK void pretend_fault(const char* what);
// Shared memory: variables of this section lie between these two.
__attribute__((weak, visibility("hidden"))) extern char __start_shared_memory[];
__attribute__((weak, visibility("hidden"))) extern char __stop_shared_memory[];
}

namespace sim {

struct Dim {
    unsigned x, y, z;
};

// A stack is a little longer than a power of two: otherwise all of their ends would share one set of the cache.
constexpr unsigned THREADS_MAX = 256, STACK_BYTES = 128 * 1024 + 4096 + 64, WARP = 32;

enum class State { Running, AtBarrier, AtWarp, Ended };

struct Thread {
    State state;
    // Where in the source it waits.
    int line;
    unsigned fiber;
    // Exchanges of its warp so far.
    unsigned exchanges;
};

#ifndef SIM_UCONTEXT
// A suspended stack is its pointer; what the caller must find again lies on top of it.
struct Context {
    void* stack;
};
extern "C" void sim_switch(void** save, void* to);
asm(R"(
    .text
    .p2align 4
    .hidden sim_switch
    .type sim_switch, @function
sim_switch:
    push %rbp
    push %rbx
    push %r12
    push %r13
    push %r14
    push %r15
    mov %rsp, (%rdi)
    mov %rsi, %rsp
    pop %r15
    pop %r14
    pop %r13
    pop %r12
    pop %rbx
    pop %rbp
    ret
    .size sim_switch, .-sim_switch
)");
SIM static void switch_to(Context& from, Context& to) { sim_switch(&from.stack, to.stack); }
SIM static void prepare(Context& context, char* stack, void (*entry)()) {
    // Six registers, the entry, and the place of its return address, with which the stack is aligned as after a call.
    void** top = (void**)(stack + STACK_BYTES) - 8;
    memset(top, 0, 8 * sizeof(void*));
    top[6] = (void*)entry;
    context.stack = top;
}
#else
// For other processors; slower, as each switch is a call of the system.
struct Context {
    ucontext_t inner;
};
SIM static void switch_to(Context& from, Context& to) { swapcontext(&from.inner, &to.inner); }
SIM static void prepare(Context& context, char* stack, void (*entry)()) {
    getcontext(&context.inner);
    context.inner.uc_stack.ss_sp = stack;
    context.inner.uc_stack.ss_size = STACK_BYTES;
    context.inner.uc_link = nullptr;
    makecontext(&context.inner, entry, 0);
}
#endif

alignas(64) static char stacks[THREADS_MAX][STACK_BYTES];
static Context fibers[THREADS_MAX], scheduler;
static Thread threads[THREADS_MAX];
// Fibers that no thread keeps, and how many there are at all: none is made before it is needed.
static unsigned idle[THREADS_MAX], idle_count, made;

static struct {
    void (*call)(void*);
    void* params;
    Dim grid, block, index;
    // Threads of the block that have begun, and the one that runs.
    unsigned size, begun, current, epoch;
    // 0, or what the order of blocks and threads comes from.
    unsigned order;
    bool broken;
} run;

// What lanes of a warp show each other, in turns: a lane that is one exchange ahead must not write over what another
// has yet to read.
static unsigned char shown[2][THREADS_MAX][8];

SIM static Dim thread_index() { return Dim{run.current, 0, 0}; }
SIM static Dim block_index() { return run.index; }
SIM static Dim block_dim() { return run.block; }
SIM static Dim grid_dim() { return run.grid; }

SIM static void enter(unsigned thread) {
    run.current = thread;
    if (pretend_thread) pretend_thread(run.index.x, thread, run.epoch);
}

SIM static void fault(const char* what) {
    run.broken = true;
    if (pretend_fault) return pretend_fault(what);
    fprintf(stderr, "kernel: %s\n", what);
    abort();
}

// The number of place `i` of `n`: some order in which each comes once.
SIM static unsigned shuffled(unsigned i, unsigned n) {
    if (run.order == 0) return i;
    unsigned step = run.order % n | 1;
    for (unsigned a = step, b = n; ; ) {
        while (b != 0) {
            unsigned rest = a % b;
            a = b;
            b = rest;
        }
        if (a == 1) break;
        a = step += 2;
        b = n;
    }
    return (unsigned)(((unsigned long long)i * step + run.order) % n);
}

// The life of a fiber: threads, one after the other. It is begun, and begun again, when its number is on top of the
// idle ones.
SIM static void fiber_main() {
    unsigned fiber = idle[--idle_count];
    for (;;) {
        while (run.begun < run.size) {
            unsigned thread = shuffled(run.begun++, run.size);
            threads[thread] = Thread{State::Running, 0, fiber, 0};
            enter(thread);
            run.call(run.params);
            // Others may have run meanwhile, but this one is the current one again.
            threads[run.current].state = State::Ended;
        }
        idle[idle_count++] = fiber;
        switch_to(fibers[fiber], scheduler);
        --idle_count;
    }
}

SIM static void wait(State state, int line) {
    Thread& thread = threads[run.current];
    thread.state = state;
    thread.line = line;
    switch_to(fibers[thread.fiber], scheduler);
}

SIM static void resume(unsigned thread) {
    threads[thread].state = State::Running;
    enter(thread);
    switch_to(scheduler, fibers[threads[thread].fiber]);
}

// Whether all of these threads wait in one place; faults if they cannot come together.
SIM static bool together(unsigned from, unsigned to, State state) {
    unsigned waiting = 0, ended = 0;
    for (unsigned i = from; i < to; ++i) {
        waiting += threads[i].state == state;
        ended += threads[i].state == State::Ended;
        if (threads[i].state == state && threads[from].state == state && threads[i].line != threads[from].line) {
            fault("threads wait at different barriers");
            return false;
        }
    }
    if (waiting > 0 && ended > 0) fault("some threads ended before a barrier that others wait at");
    return waiting == to - from;
}

SIM static void begin_threads() {
    while (run.begun < run.size && !run.broken) {
        if (idle_count == 0) {
            prepare(fibers[made], stacks[made], fiber_main);
            idle[idle_count++] = made++;
        }
        switch_to(scheduler, fibers[idle[idle_count - 1]]);
    }
}

SIM static void run_block() {
    run.begun = run.epoch = 0;
    char *shared = __start_shared_memory, *end = __stop_shared_memory;
    if (shared != end) memset(shared, 0xCB, (size_t)(end - shared));
    begin_threads();
    bool moved = true;
    while (moved && !run.broken) {
        moved = false;
        for (unsigned from = 0; from < run.size && !run.broken; from += WARP) {
            unsigned to = from + WARP < run.size ? from + WARP : run.size;
            if (!together(from, to, State::AtWarp) || run.broken) continue;
            moved = true;
            for (unsigned i = from; i < to; ++i) resume(shuffled(i - from, to - from) + from);
        }
        if (!moved && !run.broken && together(0, run.size, State::AtBarrier)) {
            moved = true;
            ++run.epoch;
            for (unsigned i = 0; i < run.size; ++i) resume(shuffled(i, run.size));
        }
    }
    for (unsigned i = 0; i < run.size && !run.broken; ++i) {
        if (threads[i].state != State::Ended) fault("threads wait for others that wait elsewhere");
    }
}

SIM static void launch(void (*call)(void*), void* params, const unsigned* grid, const unsigned* block) {
    run = {};
    run.call = call;
    run.params = params;
    run.grid = Dim{grid[0], grid[1], grid[2]};
    run.block = Dim{block[0], block[1], block[2]};
    run.size = block[0] * block[1] * block[2];
    const char* order = getenv("PRETEND_ORDER");
    run.order = order ? (unsigned)atoi(order) : 0;
    if (run.size > THREADS_MAX || block[1] * block[2] != 1 || grid[1] * grid[2] != 1) {
        return fault("only grids and blocks of one dimension, and blocks of up to 256 threads, are pretended");
    }
    for (unsigned i = 0; i < grid[0] && !run.broken; ++i) {
        run.index = Dim{shuffled(i, grid[0]), 0, 0};
        run_block();
    }
    // Threads that never ended keep their fibers: begin with new ones.
    if (run.broken) made = idle_count = 0;
}

SIM static void barrier(int line) { wait(State::AtBarrier, line); }

template <class V> SIM static V exchange(V value, int mask, int line) {
    unsigned self = run.current, turn = threads[self].exchanges++ & 1;
    memcpy(shown[turn][self], &value, sizeof(V));
    wait(State::AtWarp, line);
    memcpy(&value, shown[turn][self ^ (unsigned)mask], sizeof(V));
    return value;
}

SIM static void fence() {
    if (pretend_fence) pretend_fence();
}

SIM static void touch(const void* address, unsigned long bytes) {
    if (pretend_atomic) pretend_atomic(address, bytes);
}

template <class V> SIM static V add(V* address, V value) {
    touch(address, sizeof(V));
    V before = *address;
    *address = before + value;
    return before;
}

template <class V> SIM static V exchange_memory(V* address, V value) {
    touch(address, sizeof(V));
    V before = *address;
    *address = value;
    return before;
}

template <class V> SIM static V compare_and_swap(V* address, V expected, V value) {
    touch(address, sizeof(V));
    V before = *address;
    if (before == expected) *address = value;
    return before;
}

template <class P, void (*kernel)(P)> SIM static void call(void* params) { kernel(*(const P*)params); }

} // namespace sim

SIM_EXPORT void sim_ranges(unsigned long long* out) {
    out[0] = (unsigned long long)sim::stacks;
    out[1] = (unsigned long long)(sim::stacks + sim::THREADS_MAX);
    out[2] = (unsigned long long)__start_shared_memory;
    out[3] = (unsigned long long)__stop_shared_memory;
}

// The words of CUDA that the kernels use.
#define __device__
#define __noinline__ __attribute__((noinline))
#define __grid_constant__
#define __shared__ static __attribute__((section("shared_memory")))
#define threadIdx (sim::thread_index())
#define blockIdx (sim::block_index())
#define blockDim (sim::block_dim())
#define gridDim (sim::grid_dim())
#define __syncthreads() sim::barrier(__LINE__)
#define __threadfence() sim::fence()
#define __threadfence_system() sim::fence()
#define __shfl_xor_sync(warp, value, mask) sim::exchange(value, mask, __LINE__)
#define atomicAdd(address, value) sim::add(address, value)
#define atomicExch(address, value) sim::exchange_memory(address, value)
#define atomicCAS(address, expected, value) sim::compare_and_swap(address, expected, value)

// A kernel as a plain function, and what the driver calls.
#define ENTRY(full, Params) SIM_ENTRY(full, Params)
#define SIM_ENTRY(full, Params)                                                                                       \
    static void full(const Params p);                                                                                 \
    SIM_EXPORT void sim_##full(void** params, const unsigned* grid, const unsigned* block) {                          \
        sim::launch(sim::call<Params, full>, params[0], grid, block);                                                 \
    }                                                                                                                 \
    extern "C" __attribute__((visibility("default"))) const unsigned sim_params_##full[2];                            \
    extern const unsigned sim_params_##full[2] = {1, sizeof(Params)};                                                 \
    __attribute__((noinline)) static void full(const Params p)

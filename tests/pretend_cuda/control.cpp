// Entering calls, counting and failing them, and what tests ask the pretend driver.
//
// Environment: PRETEND_DEVICES (2; 0: none is found), PRETEND_MEMORY (bytes of each, 1 GiB), PRETEND_CC (compute
// capability, 90), PRETEND_STRICT=1 (the process ends with 97 if something was found).
//
// A test calls the functions `pretend_..` below:
//   pretend_fail(call, nth, code)  the nth call of that name (null: of any) from now answers the code and does nothing;
//                                  pretend_fail_off ends that, and brings devices back that a sticky code killed
//   pretend_calls(call)            calls so far of that name (null: of the driver), until pretend_reset_calls
//   pretend_violations()           how many different ones were found; pretend_violation(i) says it in words
//   pretend_block(..)              the program's own pool hands out a block of driver memory, or takes it back
//   pretend_host_access(..)        the host is about to read or write pinned memory
//   pretend_mutate(what, on)       "skip_wait", "skip_record": events order nothing; "busy": queries say that work is
//                                  under way until the host has waited for it in another way
//   pretend_log()                  the last calls
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <unistd.h>

#include "driver.hpp"

namespace pretend {

namespace {
struct Failing {
    bool armed = false;
    std::string call;
    unsigned left = 0;
    int code = 0;
};
struct Control {
    Failing failing;
    std::map<std::string, u64, std::less<>> calls;
    std::deque<std::string> log;
    std::string shown;
};
constexpr size_t LOG = 64;

Control& control() {
    static Control* one = new Control;
    return *one;
}

bool sticky(int code) { return code == 700 || code == 702 || code == 710 || (code >= 714 && code <= 720); }

int injected(const char* name) {
    Failing& f = control().failing;
    if (!f.armed || (!f.call.empty() && f.call != name) || --f.left) return 0;
    f.armed = false;
    return f.code;
}
}  // namespace

thread_local CUcontext current = nullptr;

Driver& driver() {
    static Driver* one = new Driver;
    return *one;
}

u64 from_env(const char* name, u64 otherwise) {
    const char* text = std::getenv(name);
    return text && *text ? std::strtoull(text, nullptr, 10) : otherwise;
}

const char* intern(const std::string& name) {
    static auto* all = new std::set<std::string>;
    return all->insert(name).first->c_str();
}

Call::Call(const char* name, int needs) : held(driver().lock) {
    Control& c = control();
    auto count = c.calls.find(name);
    if (count == c.calls.end()) count = c.calls.emplace(name, 0).first;
    count->second += 1;
    c.log.emplace_back(name);
    if (c.log.size() > LOG) c.log.pop_front();
    const bool asks_for_text = !std::strncmp(name, "cuGetError", 10);
    const int fail = asks_for_text ? 0 : injected(name);
    if (!asks_for_text && current && current->dead) {
        code = current->dead;
    } else if (fail) {
        code = fail;
        if (sticky(fail) && current) current->dead = fail;
    } else if ((needs & (CONTEXT | UNSAFE)) && !driver().initialised) {
        code = NOT_INITIALIZED;
    } else if ((needs & (CONTEXT | UNSAFE)) && !current) {
        code = INVALID_CONTEXT;
    } else if (needs & UNSAFE) {
        for (const auto& capture : driver().captures)
            if (capture->mode == 0 || capture->thread == std::this_thread::get_id()) {
                invalidate(*capture);
                code = CAPTURE_UNSUPPORTED;
            }
    }
    if (code) c.log.back() += " -> " + std::to_string(code);
}

namespace {
struct AtExit {
    ~AtExit() {
        const auto& found = checker().violations;
        if (found.empty()) return;
        std::fprintf(stderr, "pretend driver: %zu violations\n", found.size());
        for (size_t i = 0; i < found.size() && i < 10; ++i) std::fprintf(stderr, "  %s\n", found[i].c_str());
        if (from_env("PRETEND_STRICT", 0) == 1) _exit(97);
    }
} at_exit;
}  // namespace

}  // namespace pretend

using namespace pretend;
using Guard = std::lock_guard<std::recursive_mutex>;

API void pretend_fail(const char* call, unsigned nth, unsigned code) {
    Guard guard(driver().lock);
    control().failing = {nth > 0, call ? call : "", nth, static_cast<int>(code)};
}

API void pretend_fail_off() {
    Guard guard(driver().lock);
    control().failing.armed = false;
    for (auto& device : driver().devices) device->dead = 0;
}

API unsigned long long pretend_calls(const char* call) {
    Guard guard(driver().lock);
    unsigned long long sum = 0;
    for (const auto& [name, count] : control().calls) {
        // A product stands for the launch that it makes; the other calls of the libraries are none of the driver's.
        const bool real = !name.rfind("cu", 0) && (name.rfind("cublas", 0) || !name.rfind("cublasGemm", 0));
        if (call ? name == call : real) sum += count;
    }
    return sum;
}

API void pretend_reset_calls() {
    Guard guard(driver().lock);
    control().calls.clear();
}

API unsigned pretend_violations() {
    Guard guard(driver().lock);
    return static_cast<unsigned>(checker().violations.size());
}

API const char* pretend_violation(unsigned i) {
    Guard guard(driver().lock);
    const auto& found = checker().violations;
    return i < found.size() ? intern(found[i]) : nullptr;
}

API void pretend_clear_violations() {
    Guard guard(driver().lock);
    checker().clear();
}

API void pretend_block(u64 ptr, u64 bytes, int handed_out) {
    Guard guard(driver().lock);
    checker().block(ptr, bytes, handed_out != 0);
    if (handed_out) block_handed_out(ptr, bytes);
}

API void pretend_host_access(const void* ptr, u64 bytes, int write) {
    Guard guard(driver().lock);
    const u64 address = reinterpret_cast<u64>(ptr);
    if (!checker().inside(address)) return;
    checker().begin(checker().host(), write ? "a write of the host" : "a read of the host");
    checker().access(address, bytes, write != 0);
}

API void pretend_mutate(const char* what, int on) {
    Guard guard(driver().lock);
    if (on) {
        driver().mutations.insert(what);
    } else {
        driver().mutations.erase(what);
    }
}

API const char* pretend_log() {
    Guard guard(driver().lock);
    Control& c = control();
    c.shown.clear();
    for (const auto& line : c.log) c.shown += line + "\n";
    return c.shown.c_str();
}

// For the pretend libraries: enters a call of that name, and runs or records an operation.
API int pretend_enter(const char* name, int needs_context) {
    Call call(name, needs_context ? Call::CONTEXT : Call::NOTHING);
    return call.code;
}

API int pretend_operation(void* stream, const char* name, void (*run)(void*), const void* context, u64 bytes) {
    Call call(name);
    if (call.code) return call.code;
    CUstream s;
    if (const int code = stream_of(static_cast<CUstream>(stream), s)) return code;
    const auto* first = static_cast<const u8*>(context);
    return submit(s, intern(name), [run, kept = std::vector<u8>(first, first + bytes)]() mutable { run(kept.data()); });
}

API void pretend_access(u64 ptr, u64 bytes, int write) { checker().access(ptr, bytes, write != 0); }

API int pretend_current_device() {
    Guard guard(driver().lock);
    return current ? current->number : -1;
}

API int pretend_capturing(void* stream) {
    Guard guard(driver().lock);
    auto* s = static_cast<CUstream>(stream);
    return driver().streams.has(s) && s->capture ? 1 : 0;
}

// What kernels call.
#define TSAN(n)                                                                                         \
    API void __tsan_read##n(void* p) { checker().touch(reinterpret_cast<u64>(p), n, false); }           \
    API void __tsan_write##n(void* p) { checker().touch(reinterpret_cast<u64>(p), n, true); }           \
    API void __tsan_unaligned_read##n(void* p) { checker().touch(reinterpret_cast<u64>(p), n, false); } \
    API void __tsan_unaligned_write##n(void* p) { checker().touch(reinterpret_cast<u64>(p), n, true); } \
    API void __tsan_volatile_read##n(void* p) { checker().touch(reinterpret_cast<u64>(p), n, false); }  \
    API void __tsan_volatile_write##n(void* p) { checker().touch(reinterpret_cast<u64>(p), n, true); }
TSAN(1)
TSAN(2)
TSAN(4)
TSAN(8)
TSAN(16)
API void __tsan_read_range(void* p, u64 n) { checker().touch(reinterpret_cast<u64>(p), static_cast<u32>(n), false); }
API void __tsan_write_range(void* p, u64 n) { checker().touch(reinterpret_cast<u64>(p), static_cast<u32>(n), true); }
API void __tsan_init() {}
API void __tsan_func_entry(void*) {}
API void __tsan_func_exit() {}
API void pretend_thread(unsigned block, unsigned thread, unsigned epoch) { checker().thread(block, thread, epoch); }
API void pretend_atomic(const void* p, unsigned long n) {
    checker().atomic(reinterpret_cast<u64>(p), static_cast<u32>(n));
}
API void pretend_fence() { checker().fence(); }
API void pretend_fault(const char* text) { checker().fault(text); }

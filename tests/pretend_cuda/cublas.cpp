// The pretend libcublas: column-major products on the CPU, each one operation of its stream in the pretend driver.
//
// As in the real library, a new stream takes the workspace away, and a product uses its workspace, so that two streams
// that share one are found. Scalars are read on the host at the call.
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "library.hpp"

namespace {
enum Status { OK = 0, NOT_READY = 1, ALLOC_FAILED = 3, INVALID_VALUE = 7, EXECUTION_FAILED = 13, NOT_SUPPORTED = 15 };
constexpr u64 WORKSPACE_USED = 4096;

struct Handle {
    void* stream = nullptr;
    u64 workspace = 0, workspace_bytes = 0;
    int math = 0, pointers = 0;
};

std::mutex lock;
std::map<Handle*, std::unique_ptr<Handle>>& handles() {
    static auto* all = new std::map<Handle*, std::unique_ptr<Handle>>;
    return *all;
}

Handle* find(void* handle) {
    std::lock_guard<std::mutex> guard(lock);
    auto found = handles().find(static_cast<Handle*>(handle));
    return found == handles().end() ? nullptr : found->first;
}

struct Matrix {
    u64 at;
    int type;
    i64 ld, stride;
};

struct Product {
    bool across_a, across_b;
    i64 m, n, k, batch;
    Matrix a, b, c;
    double alpha, beta;
    u64 workspace, workspace_bytes;
};

void touch(const Matrix& x, u64 at, i64 rows, i64 columns, bool write) {
    if (rows <= 0) return;
    for (i64 j = 0; j < columns; ++j)
        pretend_access(at + static_cast<u64>(j * x.ld) * size_of(x.type), static_cast<u64>(rows) * size_of(x.type),
                       write);
}

// op(x) as rows of `columns` numbers.
std::vector<double> dense(const Matrix& x, u64 at, bool across, i64 rows, i64 columns) {
    touch(x, at, across ? columns : rows, across ? rows : columns, false);
    std::vector<double> out(static_cast<size_t>(rows * columns));
    for (i64 i = 0; i < rows; ++i)
        for (i64 j = 0; j < columns; ++j)
            out[static_cast<size_t>(i * columns + j)] =
                get(at + static_cast<u64>(across ? j + i * x.ld : i + j * x.ld) * size_of(x.type), x.type);
    return out;
}

void multiply(const Product& p, i64 index) {
    const auto start = [&](const Matrix& x) { return x.at + static_cast<u64>(x.stride * index) * size_of(x.type); };
    const u64 at = start(p.c);
    std::vector<double> sums(static_cast<size_t>(p.m * p.n));
    if (p.alpha != 0) {
        const auto a = dense(p.a, start(p.a), p.across_a, p.m, p.k), b = dense(p.b, start(p.b), p.across_b, p.k, p.n);
        for (i64 i = 0; i < p.m; ++i)
            for (i64 l = 0; l < p.k; ++l) {
                const double factor = a[static_cast<size_t>(i * p.k + l)];
                const double* row = &b[static_cast<size_t>(l * p.n)];
                double* into = &sums[static_cast<size_t>(i * p.n)];
                for (i64 j = 0; j < p.n; ++j) into[j] += factor * row[j];
            }
    }
    if (p.beta != 0) touch(p.c, at, p.m, p.n, false);
    touch(p.c, at, p.m, p.n, true);
    for (i64 i = 0; i < p.m; ++i)
        for (i64 j = 0; j < p.n; ++j) {
            const u64 place = at + static_cast<u64>(i + j * p.c.ld) * size_of(p.c.type);
            const double old = p.beta != 0 ? p.beta * get(place, p.c.type) : 0;
            put(place, p.c.type, p.alpha * sums[static_cast<size_t>(i * p.n + j)] + old);
        }
}

void run(void* context) {
    Product p;
    std::memcpy(&p, context, sizeof p);
    if (p.workspace)
        pretend_access(p.workspace, p.workspace_bytes < WORKSPACE_USED ? p.workspace_bytes : WORKSPACE_USED, 1);
    for (i64 i = 0; i < p.batch; ++i) multiply(p, i);
}

bool known(int type) { return type == F32 || type == F64 || type == F16 || type == BF16; }

// The scalars' type; -1: no such way to compute with these types.
int scalar_type(int compute, const Product& p) {
    if (p.a.type != p.b.type || !known(p.a.type) || !known(p.c.type)) return -1;
    const bool wide = p.c.type == F64;
    if (compute == 70 || compute == 71) return p.a.type == F64 && wide ? F64 : -1;
    if (compute == 64 || compute == 65) return p.a.type == F16 && p.c.type == F16 ? F16 : -1;
    const bool fast = compute == 74 || compute == 75 || compute == 77 || compute == 78;
    if ((compute != 68 && compute != 69 && !fast) || p.a.type == F64 || wide) return -1;
    if (fast && p.a.type != F32) return -1;
    return p.a.type == p.c.type || p.c.type == F32 ? F32 : -1;
}

int gemm(const char* name, void* handle, int ta, int tb, Product p, const void* alpha, const void* beta, int compute) {
    Handle* h = find(handle);
    if (!h) return NOT_READY;
    if (ta < 0 || ta > 2 || tb < 0 || tb > 2 || p.m < 0 || p.n < 0 || p.k < 0 || p.batch < 0 || !alpha || !beta)
        return INVALID_VALUE;
    p.across_a = ta != 0, p.across_b = tb != 0;
    const auto at_least = [](i64 ld, i64 rows) { return ld >= (rows > 1 ? rows : 1); };
    if (!at_least(p.a.ld, p.across_a ? p.k : p.m) || !at_least(p.b.ld, p.across_b ? p.n : p.k) ||
        !at_least(p.c.ld, p.m))
        return INVALID_VALUE;
    const int scalars = scalar_type(compute, p);
    if (scalars < 0) return NOT_SUPPORTED;
    if (h->pointers != 0) return NOT_SUPPORTED;
    p.alpha = get(reinterpret_cast<u64>(alpha), scalars), p.beta = get(reinterpret_cast<u64>(beta), scalars);
    if (p.m == 0 || p.n == 0 || p.batch == 0) return OK;
    p.workspace = h->workspace, p.workspace_bytes = h->workspace_bytes;
    // Without a workspace of the caller's the library would allocate, which a capture does not allow.
    if (pretend_capturing(h->stream) && !p.workspace) return ALLOC_FAILED;
    return pretend_operation(h->stream, name, run, &p, sizeof p) ? EXECUTION_FAILED : OK;
}
}  // namespace

// A call that is made to fail answers with the code that was asked for, if it is one of this library's.
static int status_of(int code) {
    for (const int one : {1, 3, 7, 8, 11, 13, 14, 15, 16})
        if (code == one) return code;
    return NOT_READY;
}

#define ENTER(name) \
    if (const int code = pretend_enter(name, 1)) return status_of(code)
#define FIND                  \
    Handle* h = find(handle); \
    if (!h) return NOT_READY

API int cublasCreate_v2(void** out) {
    ENTER("cublasCreate_v2");
    if (!out) return INVALID_VALUE;
    std::lock_guard<std::mutex> guard(lock);
    auto made = std::make_unique<Handle>();
    *out = made.get();
    handles().emplace(made.get(), std::move(made));
    return OK;
}

API int cublasDestroy_v2(void* handle) {
    ENTER("cublasDestroy_v2");
    FIND;
    std::lock_guard<std::mutex> guard(lock);
    handles().erase(h);
    return OK;
}

API int cublasSetStream_v2(void* handle, void* stream) {
    ENTER("cublasSetStream_v2");
    FIND;
    h->stream = stream;
    h->workspace = h->workspace_bytes = 0;
    return OK;
}

API int cublasSetWorkspace_v2(void* handle, void* workspace, size_t bytes) {
    ENTER("cublasSetWorkspace_v2");
    FIND;
    if (reinterpret_cast<u64>(workspace) % 256) return INVALID_VALUE;
    h->workspace = reinterpret_cast<u64>(workspace);
    h->workspace_bytes = bytes;
    return OK;
}

API int cublasSetMathMode(void* handle, int mode) {
    ENTER("cublasSetMathMode");
    FIND;
    if (mode < 0 || mode > 31) return INVALID_VALUE;
    h->math = mode;
    return OK;
}

API int cublasSetPointerMode_v2(void* handle, int mode) {
    ENTER("cublasSetPointerMode_v2");
    FIND;
    if (mode < 0 || mode > 1) return INVALID_VALUE;
    h->pointers = mode;
    return OK;
}

API int cublasGetVersion_v2(void*, int* version) {
    ENTER("cublasGetVersion_v2");
    if (!version) return INVALID_VALUE;
    *version = 130000;
    return OK;
}

// Of no context, and no handle.
API int cublasGetProperty(int which, int* value) {
    if (pretend_enter("cublasGetProperty", 0)) return NOT_READY;
    if (!value || which < 0 || which > 2) return INVALID_VALUE;
    *value = which == 0 ? 13 : 0;
    return OK;
}

API const char* cublasGetStatusName(int status) {
    switch (status) {
        case OK: return "CUBLAS_STATUS_SUCCESS";
        case NOT_READY: return "CUBLAS_STATUS_NOT_INITIALIZED";
        case ALLOC_FAILED: return "CUBLAS_STATUS_ALLOC_FAILED";
        case INVALID_VALUE: return "CUBLAS_STATUS_INVALID_VALUE";
        case EXECUTION_FAILED: return "CUBLAS_STATUS_EXECUTION_FAILED";
        case NOT_SUPPORTED: return "CUBLAS_STATUS_NOT_SUPPORTED";
        default: return "CUBLAS_STATUS_UNKNOWN";
    }
}

API const char* cublasGetStatusString(int status) { return cublasGetStatusName(status); }

API int cublasGemmEx(void* handle, int ta, int tb, int m, int n, int k, const void* alpha, const void* a, int a_type,
                     int lda, const void* b, int b_type, int ldb, const void* beta, void* c, int c_type, int ldc,
                     int compute, int) {
    const auto at = [](const void* p) { return reinterpret_cast<u64>(p); };
    const Product p{false, false, m, n, k, 1, {at(a), a_type, lda, 0}, {at(b), b_type, ldb, 0}, {at(c), c_type, ldc, 0},
                    0,     0,     0, 0};
    return gemm("cublasGemmEx", handle, ta, tb, p, alpha, beta, compute);
}

API int cublasGemmStridedBatchedEx(void* handle, int ta, int tb, int m, int n, int k, const void* alpha, const void* a,
                                   int a_type, int lda, i64 stride_a, const void* b, int b_type, int ldb, i64 stride_b,
                                   const void* beta, void* c, int c_type, int ldc, i64 stride_c, int batch, int compute,
                                   int) {
    const auto at = [](const void* p) { return reinterpret_cast<u64>(p); };
    const Product p{false,
                    false,
                    m,
                    n,
                    k,
                    batch,
                    {at(a), a_type, lda, stride_a},
                    {at(b), b_type, ldb, stride_b},
                    {at(c), c_type, ldc, stride_c},
                    0,
                    0,
                    0,
                    0};
    return gemm("cublasGemmStridedBatchedEx", handle, ta, tb, p, alpha, beta, compute);
}

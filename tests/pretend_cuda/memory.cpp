// The pretend libcuda: device memory, pools, pinned memory, copies.
#include <algorithm>
#include <cstring>

#include "driver.hpp"

namespace pretend {

namespace {
constexpr u64 GRANULE = 2 << 20, PIECE = 512;

u64 round_up(u64 n, u64 to) { return (n + to - 1) / to * to; }

u64 free_bytes(const pretend_device& device) {
    u64 taken = device.direct;
    for (auto& [pool, owned] : driver().pools.alive)
        if (pool->device == device.number) taken += pool->reserved;
    return taken > device.total ? 0 : device.total - taken;
}

void shrink(pretend_pool& pool, u64 keep) {
    pool.reserved = std::min(pool.reserved, std::max(round_up(pool.used, GRANULE), round_up(keep, GRANULE)));
}

// Grows what the pool holds, so that `bytes` more fit.
bool charge(pretend_pool& pool, u64 bytes) {
    pretend_device& device = *driver().devices[pool.device];
    const u64 need = round_up(pool.used + bytes, GRANULE);
    if (need < bytes || (pool.max && need > pool.max)) return false;
    if (need > pool.reserved && need - pool.reserved > free_bytes(device)) {
        for (auto& [other, owned] : driver().pools.alive)
            if (other != &pool && other->device == pool.device) shrink(*other, 0);
        if (need - pool.reserved > free_bytes(device)) return false;
    }
    pool.reserved = std::max(pool.reserved, need);
    pool.used += bytes;
    pool.used_high = std::max(pool.used_high, pool.used);
    pool.reserved_high = std::max(pool.reserved_high, pool.reserved);
    return true;
}

void discharge(Allocation& a) {
    if (a.pool) {
        auto* pool = static_cast<CUmemoryPool>(a.pool);
        if (driver().pools.has(pool)) pool->used -= a.charged;
    } else if (a.device != PINNED) {
        driver().devices[a.device]->direct -= a.charged;
    }
    checker().retire(a);
}

// The live allocation that begins at the address, in device memory or not.
Allocation* starting_at(u64 address, bool pinned) {
    Allocation* a = checker().find(address);
    return a && !a->freed && a->lo == address && (a->device == PINNED) == pinned ? a : nullptr;
}

bool is_pinned(const void* p) {
    Allocation* a = checker().find(reinterpret_cast<u64>(p));
    return a && a->device == PINNED;
}

// Device memory, or pinned memory that the program's pool hands out as blocks.
bool on_device(u64 address) {
    return checker().inside(address) && (!is_pinned(reinterpret_cast<void*>(address)) || checker().managed(address));
}

void wait_for_device(int device) {
    for (auto& [stream, owned] : driver().streams.alive)
        if (stream->lane.device == device) checker().host_sees(stream->lane.clock);
}

CUresult copy(const char* name, u64 dst, u64 src, size_t bytes, CUstream stream, bool between_devices) {
    return submit(stream, name, [=] {
        checker().both_devices = between_devices;
        checker().access(src, bytes, false);
        checker().access(dst, bytes, true);
        checker().both_devices = false;
        std::memmove(reinterpret_cast<void*>(dst), reinterpret_cast<void*>(src), bytes);
    });
}
}  // namespace

// The host has waited for the stream: pools give back what they hold above their thresholds.
void host_waits(CUstream stream) {
    checker().host_sees(stream->lane.clock);
    for (auto& [pool, owned] : driver().pools.alive)
        if (pool->device == stream->lane.device) shrink(*pool, pool->threshold);
}

}  // namespace pretend

using namespace pretend;

struct PoolProperties {
    unsigned type, handles, location;
    int device;
    void* security;
    size_t max;
    unsigned char rest[56];
};

API CUresult cuMemGetInfo_v2(size_t* free, size_t* total) {
    ENTER("cuMemGetInfo_v2");
    *free = free_bytes(*current);
    *total = current->total;
    return SUCCESS;
}

API CUresult cuMemPoolCreate(CUmemoryPool* pool, const PoolProperties* properties) {
    ENTER("cuMemPoolCreate");
    if (!pool || !properties || properties->type != 1 || properties->location != 1) return INVALID_VALUE;
    if (properties->device < 0 || properties->device >= static_cast<int>(driver().devices.size()))
        return INVALID_DEVICE;
    auto made = std::make_unique<pretend_pool>();
    made->device = properties->device;
    made->max = properties->max;
    *pool = driver().pools.add(std::move(made));
    return SUCCESS;
}

API CUresult cuMemPoolDestroy(CUmemoryPool pool) {
    ENTER("cuMemPoolDestroy");
    if (!driver().pools.has(pool)) return INVALID_HANDLE;
    if (pool->used)
        checker().report("a pool was destroyed with memory in use", checker().current(), 0,
                         std::to_string(pool->used) + " bytes");
    driver().pools.alive.erase(pool);
    return SUCCESS;
}

API CUresult cuMemPoolSetAttribute(CUmemoryPool pool, int which, void* value) {
    ENTER("cuMemPoolSetAttribute");
    if (!driver().pools.has(pool)) return INVALID_HANDLE;
    if (which >= 1 && which <= 3) {
        pool->reuse[which] = static_cast<u64>(*static_cast<int*>(value));
    } else if (which == 4) {
        pool->threshold = *static_cast<u64*>(value);
    } else if ((which == 6 || which == 8) && *static_cast<u64*>(value) == 0) {
        (which == 6 ? pool->reserved_high : pool->used_high) = which == 6 ? pool->reserved : pool->used;
    } else {
        return INVALID_VALUE;
    }
    return SUCCESS;
}

API CUresult cuMemPoolGetAttribute(CUmemoryPool pool, int which, void* value) {
    ENTER("cuMemPoolGetAttribute");
    if (!driver().pools.has(pool)) return INVALID_HANDLE;
    if (which >= 1 && which <= 3) return *static_cast<int*>(value) = static_cast<int>(pool->reuse[which]), SUCCESS;
    const u64 values[] = {pool->threshold, pool->reserved, pool->reserved_high, pool->used, pool->used_high};
    if (which < 4 || which > 8) return INVALID_VALUE;
    *static_cast<u64*>(value) = values[which - 4];
    return SUCCESS;
}

API CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t keep) {
    ENTER("cuMemPoolTrimTo");
    if (!driver().pools.has(pool)) return INVALID_HANDLE;
    shrink(*pool, keep);
    return SUCCESS;
}

API CUresult cuMemAllocFromPoolAsync(CUdeviceptr* out, size_t bytes, CUmemoryPool pool, CUstream handle) {
    ENTER("cuMemAllocFromPoolAsync");
    CUstream stream;
    if (const CUresult code = stream_of(handle, stream)) return code;
    if (!driver().pools.has(pool)) return INVALID_HANDLE;
    if (!out || bytes == 0 || pool->device != stream->lane.device) return INVALID_VALUE;
    if (const CUresult code = refuse_capture(stream)) return code;
    const u64 charged = round_up(bytes, PIECE);
    if (charged < bytes || !charge(*pool, charged)) return OUT_OF_MEMORY;
    Allocation* a = checker().allocate(pool->device, charged);
    if (!a) return pool->used -= charged, OUT_OF_MEMORY;
    a->pool = pool;
    a->charged = charged;
    a->born = checker().begin(stream->lane, "cuMemAllocFromPoolAsync");
    a->born_on = stream->lane.slot;
    *out = a->lo;
    return SUCCESS;
}

API CUresult cuMemFreeAsync(CUdeviceptr ptr, CUstream handle) {
    ENTER("cuMemFreeAsync");
    CUstream stream;
    if (const CUresult code = stream_of(handle, stream)) return code;
    if (const CUresult code = refuse_capture(stream)) return code;
    Allocation* a = starting_at(ptr, false);
    if (!a) return INVALID_VALUE;
    checker().begin(stream->lane, "cuMemFreeAsync");
    checker().check_free(*a);
    discharge(*a);
    return SUCCESS;
}

API CUresult cuMemAlloc_v2(CUdeviceptr* out, size_t bytes) {
    ENTER("cuMemAlloc_v2", Call::UNSAFE);
    if (!out || bytes == 0) return INVALID_VALUE;
    const u64 charged = round_up(bytes, PIECE);
    if (charged < bytes || charged > free_bytes(*current)) return OUT_OF_MEMORY;
    Allocation* a = checker().allocate(current->number, charged);
    if (!a) return OUT_OF_MEMORY;
    a->charged = charged;
    current->direct += charged;
    *out = a->lo;
    return SUCCESS;
}

// It waits for the whole device, as the real one does.
API CUresult cuMemFree_v2(CUdeviceptr ptr) {
    ENTER("cuMemFree_v2", Call::UNSAFE);
    if (!ptr) return SUCCESS;
    Allocation* a = starting_at(ptr, false);
    if (!a) return INVALID_VALUE;
    wait_for_device(a->device);
    checker().begin(checker().host(), "cuMemFree_v2");
    checker().check_free(*a);
    discharge(*a);
    return SUCCESS;
}

API CUresult cuMemHostAlloc(void** out, size_t bytes, unsigned flags) {
    ENTER("cuMemHostAlloc", Call::UNSAFE);
    if (!out || bytes == 0 || flags > 7) return INVALID_VALUE;
    Allocation* a = checker().allocate(PINNED, round_up(bytes, PIECE));
    if (!a) return OUT_OF_MEMORY;
    *out = reinterpret_cast<void*>(a->lo);
    return SUCCESS;
}

// The real one may or may not wait; a program must not count on it.
API CUresult cuMemFreeHost(void* ptr) {
    ENTER("cuMemFreeHost", Call::UNSAFE);
    Allocation* a = starting_at(reinterpret_cast<u64>(ptr), true);
    if (!a) return INVALID_VALUE;
    checker().begin(checker().host(), "cuMemFreeHost");
    checker().check_free(*a);
    discharge(*a);
    return SUCCESS;
}

API CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr* out, void* ptr, unsigned flags) {
    ENTER("cuMemHostGetDevicePointer_v2");
    if (!out || flags || !is_pinned(ptr)) return INVALID_VALUE;
    *out = reinterpret_cast<CUdeviceptr>(ptr);
    return SUCCESS;
}

API CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr dst, const void* src, size_t bytes, CUstream handle) {
    ENTER("cuMemcpyHtoDAsync_v2");
    CUstream stream;
    if (const CUresult code = stream_of(handle, stream)) return code;
    if (!bytes) return SUCCESS;
    if (!on_device(dst) || !src) return INVALID_VALUE;
    if (is_pinned(src)) return copy("cuMemcpyHtoDAsync_v2", dst, reinterpret_cast<u64>(src), bytes, stream, false);
    // Pageable memory is read before the call returns.
    if (checker().inside(reinterpret_cast<u64>(src))) return INVALID_VALUE;
    if (const CUresult code = refuse_capture(stream)) return code;
    return submit(stream, "cuMemcpyHtoDAsync_v2 (pageable)", [=] {
        checker().access(dst, bytes, true);
        std::memcpy(reinterpret_cast<void*>(dst), src, bytes);
    });
}

API CUresult cuMemcpyDtoHAsync_v2(void* dst, CUdeviceptr src, size_t bytes, CUstream handle) {
    ENTER("cuMemcpyDtoHAsync_v2");
    CUstream stream;
    if (const CUresult code = stream_of(handle, stream)) return code;
    if (!bytes) return SUCCESS;
    if (!on_device(src) || !dst) return INVALID_VALUE;
    if (is_pinned(dst)) return copy("cuMemcpyDtoHAsync_v2", reinterpret_cast<u64>(dst), src, bytes, stream, false);
    // Pageable memory has been written when the call returns.
    if (checker().inside(reinterpret_cast<u64>(dst))) return INVALID_VALUE;
    if (const CUresult code = refuse_capture(stream)) return code;
    const CUresult code = submit(stream, "cuMemcpyDtoHAsync_v2 (pageable)", [=] {
        checker().access(src, bytes, false);
        std::memcpy(dst, reinterpret_cast<void*>(src), bytes);
    });
    if (!code) host_waits(stream);
    return code;
}

API CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr dst, CUdeviceptr src, size_t bytes, CUstream handle) {
    ENTER("cuMemcpyDtoDAsync_v2");
    CUstream stream;
    if (const CUresult code = stream_of(handle, stream)) return code;
    if (!bytes) return SUCCESS;
    if (!on_device(dst) || !on_device(src)) return INVALID_VALUE;
    return copy("cuMemcpyDtoDAsync_v2", dst, src, bytes, stream, false);
}

API CUresult cuMemcpyPeerAsync(CUdeviceptr dst, CUcontext dst_context, CUdeviceptr src, CUcontext src_context,
                               size_t bytes, CUstream handle) {
    ENTER("cuMemcpyPeerAsync");
    CUstream stream;
    if (const CUresult code = stream_of(handle, stream)) return code;
    if (!bytes) return SUCCESS;
    Allocation *to = checker().find(dst), *from = checker().find(src);
    if (!to || !from || !on_device(dst) || !on_device(src)) return INVALID_VALUE;
    const auto is = [](Allocation* a, CUcontext context) { return driver().devices[a->device].get() == context; };
    if (!is(to, dst_context) || !is(from, src_context)) return INVALID_CONTEXT;
    return copy("cuMemcpyPeerAsync", dst, src, bytes, stream, true);
}

API CUresult cuMemsetD8Async(CUdeviceptr dst, unsigned char value, size_t count, CUstream handle) {
    ENTER("cuMemsetD8Async");
    CUstream stream;
    if (const CUresult code = stream_of(handle, stream)) return code;
    if (!count) return SUCCESS;
    if (!on_device(dst)) return INVALID_VALUE;
    return submit(stream, "cuMemsetD8Async", [=] {
        checker().access(dst, count, true);
        std::memset(reinterpret_cast<void*>(dst), value, count);
    });
}

API CUresult cuMemsetD32Async(CUdeviceptr dst, unsigned value, size_t count, CUstream handle) {
    ENTER("cuMemsetD32Async");
    CUstream stream;
    if (const CUresult code = stream_of(handle, stream)) return code;
    if (!count) return SUCCESS;
    if (!on_device(dst) || dst & 3) return INVALID_VALUE;
    return submit(stream, "cuMemsetD32Async", [=] {
        checker().access(dst, count * 4, true);
        std::fill_n(reinterpret_cast<unsigned*>(dst), count, value);
    });
}

API CUresult cuCtxSynchronize() {
    ENTER("cuCtxSynchronize", Call::UNSAFE);
    wait_for_device(current->number);
    for (auto& [pool, owned] : driver().pools.alive)
        if (pool->device == current->number) shrink(*pool, pool->threshold);
    return SUCCESS;
}

// The pretend libcuda: devices, contexts, modules, launches, the texts of errors.
//
// It is loaded in place of the real driver, keeps device memory in host memory, runs each operation when it is
// submitted (a valid order), and has the checker judge whether the program asked for that order.
#include "driver.hpp"

#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>

namespace pretend {

namespace {
constexpr int MAX_DEVICES = 8;
constexpr size_t IMAGE_MAX = 4096;

std::string folder() {
    Dl_info info;
    if (!dladdr(reinterpret_cast<void*>(&driver), &info)) return ".";
    const std::string path = info.dli_fname;
    const size_t slash = path.rfind('/');
    return slash == std::string::npos ? "." : path.substr(0, slash);
}

u64 hash(const std::string& text) {
    u64 h = 0xcbf29ce484222325ull;
    for (unsigned char c : text) h = (h ^ c) * 0x100000001b3ull;
    return h;
}

std::string read_file(const std::string& path) {
    std::ifstream in(path, std::ios::binary);
    std::stringstream text;
    text << in.rdbuf();
    return text.str();
}

struct Header {
    std::string family, type, source;
    int arch = 0;
};

// "PRETEND1 LLLL cubin family type arch hash checksum", of which LLLL is the length of all.
CUresult parse(const void* image, Header& header) {
    const char* text = static_cast<const char*>(image);
    if (std::strncmp(text, "PRETEND1 ", 9)) return INVALID_IMAGE;
    size_t length = 0;
    for (int i = 9; i < 13; ++i) {
        if (text[i] < '0' || text[i] > '9') return INVALID_IMAGE;
        length = length * 10 + static_cast<size_t>(text[i] - '0');
    }
    if (length < 40 || length > IMAGE_MAX || strnlen(text, length) != length) return INVALID_IMAGE;
    const std::string all(text, length);
    const size_t last = all.rfind(' ');
    std::stringstream fields(all);
    std::string magic, size, kind, arch, checksum;
    fields >> magic >> size >> kind >> header.family >> header.type >> arch >> header.source >> checksum;
    if (std::strtoull(checksum.c_str(), nullptr, 10) != hash(all.substr(0, last))) return INVALID_IMAGE;
    header.arch = std::atoi(arch.c_str());
    const int own = static_cast<int>(from_env("PRETEND_CC", 90));
    const bool fits = kind == "ptx" ? header.arch <= own : header.arch / 10 == own / 10 && header.arch <= own;
    return fits ? SUCCESS : NO_BINARY_FOR_GPU;
}

CUresult load(CUmodule* out, const void* image) {
    if (!out || !image) return INVALID_VALUE;
    Header header;
    if (const CUresult code = parse(image, header)) return code;
    auto module = std::make_unique<pretend_module>();
    module->device = current->number;
    module->file = folder() + "/kernels/" + header.family + "_" + header.type;
    if (header.source != std::to_string(hash(read_file(module->file + ".src")))) {
        std::fprintf(stderr, "pretend driver: %s.so was built of other sources: run .ci/pretend\n",
                     module->file.c_str());
        return INVALID_IMAGE;
    }
    module->library = dlopen((module->file + ".so").c_str(), RTLD_NOW | RTLD_LOCAL);
    if (!module->library) {
        std::fprintf(stderr, "pretend driver: %s\n", dlerror());
        return INVALID_IMAGE;
    }
    // Modules of one library share its memory, so they share what is known of it.
    static auto* images = new std::map<void*, std::shared_ptr<Image>>;
    auto& shared = (*images)[module->library];
    if (!shared) {
        shared = std::make_shared<Image>();
        shared->ranges = reinterpret_cast<void (*)(unsigned long long*)>(dlsym(module->library, "sim_ranges"));
    }
    module->image = shared;
    *out = driver().modules.add(std::move(module));
    return SUCCESS;
}

// What the shim says of a kernel's parameters: their number, and the bytes of each. False if it says nothing.
bool find_parameters(CUmodule module, const std::string& name, pretend_function& function) {
    const auto* sizes = static_cast<const unsigned*>(dlsym(module->library, ("sim_params_" + name).c_str()));
    if (sizes) function.parameters.assign(sizes + 1, sizes + 1 + sizes[0]);
    return sizes != nullptr;
}

int attribute(int which) {
    const int cc = static_cast<int>(from_env("PRETEND_CC", 90));
    switch (which) {
        case 1:
        case 2:
        case 3: return 1024;        // threads of a block, and in x and y
        case 4: return 64;          // in z
        case 5: return 2147483647;  // blocks in x
        case 6:
        case 7: return 65535;  // in y and z
        case 8: return 49152;  // shared memory of a block
        case 9: return 65536;  // constant memory
        case 10: return 32;    // threads of a warp
        case 12:
        case 82: return 65536;  // registers
        case 15:
        case 19:
        case 31:
        case 41:
        case 78:
        case 83:
        case 95:
        case 102:
        case 115: return 1;
        case 16: return 4;         // multiprocessors
        case 38: return 50 << 20;  // level 2 cache
        case 39: return 2048;      // threads of a multiprocessor
        case 40: return 3;         // copy engines
        case 75: return cc / 10;
        case 76: return cc % 10;
        case 81: return 233472;
        case 97: return 232448;
        case 106: return 32;
        default: return 0;
    }
}

bool valid(CUdevice device) { return device >= 0 && device < static_cast<int>(driver().devices.size()); }

CUcontext find_context(CUcontext context) {
    for (auto& device : driver().devices)
        if (device.get() == context && device->retained) return context;
    return nullptr;
}
}  // namespace

}  // namespace pretend

using namespace pretend;

API CUresult cuInit(unsigned flags) {
    ENTER("cuInit", Call::NOTHING);
    if (flags) return INVALID_VALUE;
    const u64 count = from_env("PRETEND_DEVICES", 2);
    if (count == 0) return NO_DEVICE;
    if (driver().initialised) return SUCCESS;
    const u64 bytes = from_env("PRETEND_MEMORY", 1ull << 30);
    for (int i = 0; i < static_cast<int>(count) && i < MAX_DEVICES; ++i) {
        driver().devices.push_back(std::make_unique<pretend_device>());
        driver().devices.back()->number = i;
        driver().devices.back()->total = bytes;
    }
    checker().reserve(static_cast<int>(driver().devices.size()), bytes);
    driver().initialised = true;
    return SUCCESS;
}

API CUresult cuDriverGetVersion(int* version) {
    ENTER("cuDriverGetVersion", Call::NOTHING);
    if (!version) return INVALID_VALUE;
    *version = 13000;
    return SUCCESS;
}

API CUresult cuDeviceGetCount(int* count) {
    ENTER("cuDeviceGetCount", Call::NOTHING);
    if (!driver().initialised) return NOT_INITIALIZED;
    *count = static_cast<int>(driver().devices.size());
    return SUCCESS;
}

API CUresult cuDeviceGet(CUdevice* device, int ordinal) {
    ENTER("cuDeviceGet", Call::NOTHING);
    if (!driver().initialised) return NOT_INITIALIZED;
    if (!valid(ordinal)) return INVALID_DEVICE;
    *device = ordinal;
    return SUCCESS;
}

API CUresult cuDeviceGetName(char* name, int length, CUdevice device) {
    ENTER("cuDeviceGetName", Call::NOTHING);
    if (!valid(device)) return INVALID_DEVICE;
    if (!name || length <= 0) return INVALID_VALUE;
    std::snprintf(name, static_cast<size_t>(length), "Pretend GPU");
    return SUCCESS;
}

API CUresult cuDeviceGetUuid_v2(unsigned char* uuid, CUdevice device) {
    ENTER("cuDeviceGetUuid_v2", Call::NOTHING);
    if (!valid(device)) return INVALID_DEVICE;
    std::memset(uuid, device + 1, 16);
    return SUCCESS;
}

API CUresult cuDeviceTotalMem_v2(size_t* bytes, CUdevice device) {
    ENTER("cuDeviceTotalMem_v2", Call::NOTHING);
    if (!valid(device)) return INVALID_DEVICE;
    *bytes = driver().devices[device]->total;
    return SUCCESS;
}

API CUresult cuDeviceGetAttribute(int* value, int which, CUdevice device) {
    ENTER("cuDeviceGetAttribute", Call::NOTHING);
    if (!valid(device)) return INVALID_DEVICE;
    if (which < 1 || which > 200) return INVALID_VALUE;
    *value = attribute(which);
    return SUCCESS;
}

API CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
    ENTER("cuDevicePrimaryCtxRetain", Call::NOTHING);
    if (!valid(device)) return driver().initialised ? INVALID_DEVICE : NOT_INITIALIZED;
    *context = driver().devices[device].get();
    (*context)->retained += 1;
    return SUCCESS;
}

API CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
    ENTER("cuDevicePrimaryCtxRelease_v2", Call::NOTHING);
    if (!valid(device)) return INVALID_DEVICE;
    pretend_device& d = *driver().devices[device];
    if (!d.retained) return INVALID_CONTEXT;
    d.retained -= 1;
    return SUCCESS;
}

API CUresult cuCtxSetCurrent(CUcontext context) {
    ENTER("cuCtxSetCurrent", Call::NOTHING);
    if (context && !find_context(context)) return INVALID_CONTEXT;
    current = context;
    return SUCCESS;
}

API CUresult cuCtxGetCurrent(CUcontext* context) {
    ENTER("cuCtxGetCurrent", Call::NOTHING);
    if (!context) return INVALID_VALUE;
    *context = current;
    return SUCCESS;
}

API CUresult cuCtxGetDevice(CUdevice* device) {
    ENTER("cuCtxGetDevice");
    *device = current->number;
    return SUCCESS;
}

API CUresult cuModuleLoadData(CUmodule* module, const void* image) {
    ENTER("cuModuleLoadData", Call::UNSAFE);
    return load(module, image);
}

API CUresult cuModuleLoadDataEx(CUmodule* module, const void* image, unsigned, void*, void**) {
    ENTER("cuModuleLoadDataEx", Call::UNSAFE);
    return load(module, image);
}

// The library stays open: graphs may still launch its kernels.
API CUresult cuModuleUnload(CUmodule module) {
    ENTER("cuModuleUnload", Call::UNSAFE);
    if (!driver().modules.has(module)) return INVALID_HANDLE;
    static auto* unloaded = new std::vector<std::unique_ptr<pretend_module>>;
    auto found = driver().modules.alive.find(module);
    for (auto& [name, function] : module->functions) driver().functions.erase(function.get());
    unloaded->push_back(std::move(found->second));
    driver().modules.alive.erase(found);
    return SUCCESS;
}

API CUresult cuModuleGetFunction(CUfunction* function, CUmodule module, const char* name) {
    ENTER("cuModuleGetFunction");
    if (!function || !name) return INVALID_VALUE;
    if (!driver().modules.has(module)) return INVALID_HANDLE;
    auto& made = module->functions[name];
    if (!made) {
        void* symbol = dlsym(module->library, (std::string("sim_") + name).c_str());
        if (!symbol) return module->functions.erase(name), NOT_FOUND;
        made = std::make_unique<pretend_function>();
        made->name = intern(name);
        made->device = module->device;
        made->run = reinterpret_cast<void (*)(void**, const unsigned*, const unsigned*)>(symbol);
        made->image = module->image.get();
        if (!find_parameters(module, name, *made)) return module->functions.erase(name), NOT_FOUND;
        driver().functions.insert(made.get());
    }
    *function = made.get();
    return SUCCESS;
}

API CUresult cuFuncGetAttribute(int* value, int which, CUfunction function) {
    ENTER("cuFuncGetAttribute");
    if (!driver().functions.count(function)) return INVALID_HANDLE;
    *value = which == 0 ? 1024 : which == 4 ? 32 : which == 8 ? function->shared_limit : 0;
    return SUCCESS;
}

API CUresult cuFuncSetAttribute(CUfunction function, int which, int value) {
    ENTER("cuFuncSetAttribute");
    if (!driver().functions.count(function)) return INVALID_HANDLE;
    if (which == 8 && (value < 0 || value > 232448)) return INVALID_VALUE;
    if (which == 8) function->shared_limit = value;
    return SUCCESS;
}

API CUresult cuLaunchKernel(CUfunction function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                            unsigned bz, unsigned shared, CUstream handle, void** parameters, void** extra) {
    ENTER("cuLaunchKernel");
    if (!driver().functions.count(function)) return INVALID_HANDLE;
    CUstream stream;
    if (const CUresult code = stream_of(handle, stream)) return code;
    if (function->device != stream->lane.device) return INVALID_HANDLE;
    const bool grid = gx && gy && gz && gx <= 2147483647u && gy <= 65535 && gz <= 65535;
    const bool block = bx && by && bz && bx <= 1024 && by <= 1024 && bz <= 64 && u64{bx} * by * bz <= 1024;
    if (!grid || !block || extra || !parameters || shared > static_cast<unsigned>(function->shared_limit))
        return INVALID_VALUE;
    // Arguments are read at submission, as the real driver does: the caller's memory may be gone at a replay.
    std::vector<std::vector<u8>> kept;
    for (size_t i = 0; i < function->parameters.size(); ++i) {
        const auto* first = static_cast<const u8*>(parameters[i]);
        kept.emplace_back(first, first + function->parameters[i]);
    }
    return submit(stream, function->name, [=]() mutable {
        std::vector<void*> pointers;
        for (auto& bytes : kept) pointers.push_back(bytes.data());
        const unsigned grid3[3] = {gx, gy, gz}, block3[3] = {bx, by, bz};
        checker().begin_kernel(function->image);
        function->run(pointers.data(), grid3, block3);
        checker().end_kernel();
    });
}

namespace {
struct Text {
    int code;
    const char *name, *text;
};
constexpr Text TEXTS[] = {
    {0, "CUDA_SUCCESS", "no error"},
    {1, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {2, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {3, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {4, "CUDA_ERROR_DEINITIALIZED", "driver shutting down"},
    {100, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {101, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {200, "CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid"},
    {201, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {209, "CUDA_ERROR_NO_BINARY_FOR_GPU", "no kernel image is available for execution on the device"},
    {400, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {401, "CUDA_ERROR_ILLEGAL_STATE", "the operation cannot be performed in the present state"},
    {500, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {600, "CUDA_ERROR_NOT_READY", "device not ready"},
    {700, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
    {702, "CUDA_ERROR_LAUNCH_TIMEOUT", "the launch timed out and was terminated"},
    {710, "CUDA_ERROR_ASSERT", "device-side assert triggered"},
    {719, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
    {801, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
    {900, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", "operation not permitted when stream is capturing"},
    {901, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED", "operation failed due to a previous error during capture"},
    {902, "CUDA_ERROR_STREAM_CAPTURE_MERGE", "operation would result in a merge of separate capture sequences"},
    {903, "CUDA_ERROR_STREAM_CAPTURE_UNMATCHED", "capture was not ended in the same stream as it began"},
    {904, "CUDA_ERROR_STREAM_CAPTURE_UNJOINED", "capturing stream has unjoined work"},
    {905, "CUDA_ERROR_STREAM_CAPTURE_ISOLATION", "dependency created on uncaptured work in another stream"},
    {907, "CUDA_ERROR_CAPTURED_EVENT", "operation not permitted on an event last recorded in a capturing stream"},
    {908, "CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD",
     "attempt to terminate a thread-local capture sequence from another thread"},
};

CUresult text_of(int code, const char** out, bool name) {
    if (!out) return INVALID_VALUE;
    *out = nullptr;
    for (const Text& text : TEXTS)
        if (text.code == code) *out = name ? text.name : text.text;
    return *out ? SUCCESS : INVALID_VALUE;
}
}  // namespace

API CUresult cuGetErrorName(int code, const char** out) {
    ENTER("cuGetErrorName", Call::NOTHING);
    return text_of(code, out, true);
}

API CUresult cuGetErrorString(int code, const char** out) {
    ENTER("cuGetErrorString", Call::NOTHING);
    return text_of(code, out, false);
}

// The pretend libnvrtc: checks what the real one would check, and answers a text that the pretend driver takes for
// code.
//
// Nothing is compiled here: the kernels were compiled by the build script, and the source that a program brings must be
// the one that they were compiled of. A source with the word PRETEND_BAD does not compile.
#include <dlfcn.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <memory>
#include <mutex>
#include <sstream>
#include <string>

#define API extern "C" __attribute__((visibility("default")))

extern "C" int pretend_enter(const char* name, int needs_context);

namespace {
enum Result {
    OK = 0,
    OUT_OF_MEMORY = 1,
    INVALID_INPUT = 3,
    INVALID_PROGRAM = 4,
    INVALID_OPTION = 5,
    COMPILATION = 6,
    INTERNAL_ERROR = 11
};
constexpr int ARCHS[] = {75, 80, 86, 87, 88, 89, 90, 100, 103, 110, 120, 121};

struct Program {
    std::string source, name, log, cubin, ptx;
};

std::mutex lock;
std::map<Program*, std::unique_ptr<Program>>& programs() {
    static auto* all = new std::map<Program*, std::unique_ptr<Program>>;
    return *all;
}

std::string folder() {
    Dl_info info;
    if (!dladdr(reinterpret_cast<void*>(&folder), &info)) return ".";
    const std::string path = info.dli_fname;
    const size_t slash = path.rfind('/');
    return slash == std::string::npos ? "." : path.substr(0, slash);
}

// As in the pretend driver, which checks what is made here.
std::uint64_t hash(const std::string& text) {
    std::uint64_t h = 0xcbf29ce484222325ull;
    for (unsigned char c : text) h = (h ^ c) * 0x100000001b3ull;
    return h;
}

std::string image(const char* kind, const std::string& family, const std::string& type, int arch,
                  const std::string& source) {
    std::string rest = std::string(" ") + kind + " " + family + " " + type + " " + std::to_string(arch) + " " +
                       std::to_string(hash(source));
    // The sum has at most 20 digits; the length counts them and the line's end, and blanks fill up what is not needed.
    const size_t length = 13 + rest.size() + 1 + 20;
    char head[16];
    std::snprintf(head, sizeof head, "PRETEND1 %04zu", length);
    std::string text = head + rest;
    const std::string sum = std::to_string(hash(text));
    // The driver cuts at the last blank: zeros in front of the number, not blanks behind it.
    return text + " " + std::string(20 - sum.size(), '0') + sum;
}

bool starts(const std::string& text, const char* with) { return text.rfind(with, 0) == 0; }

struct Options {
    std::string type, other_name, unknown;
    int arch = 0;
    bool real_arch = false;
};

Options read_options(int count, const char* const* options) {
    Options found;
    for (int i = 0; i < count; ++i) {
        const std::string option = options[i] ? options[i] : "";
        const size_t equals = option.find('=');
        const std::string value = equals == std::string::npos ? "" : option.substr(equals + 1);
        const char* known[] = {"--std=c++",       "-std=c++",
                               "--fmad=",         "--ptxas-options=",
                               "-lineinfo",       "--generate-line-info",
                               "--use_fast_math", "--maxrregcount=",
                               "-default-device", "-D"};
        if (starts(option, "--gpu-architecture=") || starts(option, "-arch=")) {
            found.real_arch = starts(value, "sm_");
            if (found.real_arch || starts(value, "compute_"))
                found.arch = std::atoi(value.c_str() + value.find('_') + 1);
        } else if (starts(option, "-DF=")) {
            found.type = value;
        } else if (starts(option, "-DT=")) {
            found.other_name = value;
        } else {
            bool ok = false;
            for (const char* one : known) ok |= starts(option, one);
            if (!ok) found.unknown = option;
        }
    }
    return found;
}

bool known_arch(int arch) {
    for (int one : ARCHS)
        if (one == arch) return true;
    return false;
}

Result compile(Program& p, int count, const char* const* options) {
    const Options o = read_options(count, options);
    if (!o.unknown.empty() || !known_arch(o.arch)) {
        p.log =
            "nvrtc: error: invalid value or unknown option: " + (o.unknown.empty() ? "--gpu-architecture" : o.unknown) +
            "\n";
        return INVALID_OPTION;
    }
    const size_t bad = p.source.find("PRETEND_BAD");
    if (bad != std::string::npos) {
        const auto line = 1 + std::count(p.source.begin(), p.source.begin() + static_cast<long>(bad), '\n');
        p.log = p.name + "(" + std::to_string(line) +
                "): error: identifier \"PRETEND_BAD\" is undefined\n\n1 error detected in the compilation of \"" +
                p.name + "\".\n";
        return COMPILATION;
    }
    const std::string family = p.name.substr(0, p.name.rfind(".cu"));
    const std::string type = o.type.empty() ? "u32" : o.type;
    if (o.type != o.other_name) {
        p.log = "pretend nvrtc: -DT and -DF name different types\n";
        return COMPILATION;
    }
    std::ifstream in(folder() + "/kernels/" + family + "_" + type + ".src", std::ios::binary);
    std::stringstream built;
    built << in.rdbuf();
    if (!in || built.str() != p.source) {
        p.log = p.name + "(1): error: the pretend kernels for " + type + " were " +
                (in ? "built of another text" : "not built") + ": run .ci/pretend\n";
        return COMPILATION;
    }
    p.ptx = image("ptx", family, type, o.arch, p.source);
    p.cubin = o.real_arch ? image("cubin", family, type, o.arch, p.source) : "";
    p.log = "pretend nvrtc: source " + std::to_string(hash(p.source)) + " for " + family + "_" + type + "\n";
    return OK;
}

Program* find(void* handle) {
    auto found = programs().find(static_cast<Program*>(handle));
    return found == programs().end() ? nullptr : found->first;
}

// Sizes of texts count their ends; those of code do not.
Result size_of(void* program, std::string Program::* text, size_t end, size_t* out) {
    std::lock_guard<std::mutex> guard(lock);
    Program* p = find(program);
    if (!p) return INVALID_PROGRAM;
    if (!out) return INVALID_INPUT;
    *out = (p->*text).size() + end;
    return OK;
}

Result copy_of(void* program, std::string Program::* text, size_t end, char* out) {
    std::lock_guard<std::mutex> guard(lock);
    Program* p = find(program);
    if (!p) return INVALID_PROGRAM;
    if (!out) return INVALID_INPUT;
    std::memcpy(out, (p->*text).c_str(), (p->*text).size() + end);
    return OK;
}
}  // namespace

// A call that is made to fail answers with the code that was asked for, if it is one of this library's.
#define ENTER(name) \
    if (const int code = pretend_enter(name, 0)) return code <= 12 ? code : static_cast<int>(INTERNAL_ERROR)

API int nvrtcVersion(int* major, int* minor) {
    ENTER("nvrtcVersion");
    *major = 13, *minor = 0;
    return OK;
}

API int nvrtcGetNumSupportedArchs(int* count) {
    ENTER("nvrtcGetNumSupportedArchs");
    *count = static_cast<int>(sizeof ARCHS / sizeof *ARCHS);
    return OK;
}

API int nvrtcGetSupportedArchs(int* out) {
    ENTER("nvrtcGetSupportedArchs");
    std::memcpy(out, ARCHS, sizeof ARCHS);
    return OK;
}

API int nvrtcCreateProgram(void** out, const char* source, const char* name, int headers, const char* const*,
                           const char* const*) {
    ENTER("nvrtcCreateProgram");
    if (!out || !source || headers) return INVALID_INPUT;
    std::lock_guard<std::mutex> guard(lock);
    auto made = std::make_unique<Program>();
    made->source = source;
    made->name = name ? name : "default_program";
    *out = made.get();
    programs().emplace(made.get(), std::move(made));
    return OK;
}

API int nvrtcCompileProgram(void* program, int count, const char* const* options) {
    ENTER("nvrtcCompileProgram");
    std::lock_guard<std::mutex> guard(lock);
    Program* p = find(program);
    if (!p) return INVALID_PROGRAM;
    return count > 0 && !options ? INVALID_INPUT : compile(*p, count, options);
}

API int nvrtcDestroyProgram(void** program) {
    ENTER("nvrtcDestroyProgram");
    std::lock_guard<std::mutex> guard(lock);
    Program* p = program ? find(*program) : nullptr;
    if (!p) return INVALID_PROGRAM;
    programs().erase(p);
    *program = nullptr;
    return OK;
}

API int nvrtcGetProgramLogSize(void* program, size_t* out) { return size_of(program, &Program::log, 1, out); }
API int nvrtcGetProgramLog(void* program, char* out) { return copy_of(program, &Program::log, 1, out); }
API int nvrtcGetCUBINSize(void* program, size_t* out) { return size_of(program, &Program::cubin, 0, out); }
API int nvrtcGetCUBIN(void* program, char* out) { return copy_of(program, &Program::cubin, 0, out); }
API int nvrtcGetPTXSize(void* program, size_t* out) { return size_of(program, &Program::ptx, 1, out); }
API int nvrtcGetPTX(void* program, char* out) { return copy_of(program, &Program::ptx, 1, out); }

API const char* nvrtcGetErrorString(int code) {
    switch (code) {
        case OK: return "NVRTC_SUCCESS";
        case OUT_OF_MEMORY: return "NVRTC_ERROR_OUT_OF_MEMORY";
        case INVALID_INPUT: return "NVRTC_ERROR_INVALID_INPUT";
        case INVALID_PROGRAM: return "NVRTC_ERROR_INVALID_PROGRAM";
        case INVALID_OPTION: return "NVRTC_ERROR_INVALID_OPTION";
        case COMPILATION: return "NVRTC_ERROR_COMPILATION";
        case INTERNAL_ERROR: return "NVRTC_ERROR_INTERNAL_ERROR";
        default: return "NVRTC_ERROR unknown";
    }
}

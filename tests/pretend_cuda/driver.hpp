// What the parts of the pretend driver share: handles, the lock, and the checks at the head of each call.
#pragma once
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "check.hpp"

#define API extern "C" __attribute__((visibility("default")))

using CUresult = int;
using CUdevice = int;
using CUdeviceptr = unsigned long long;
using CUcontext = struct pretend_device*;
using CUstream = struct pretend_stream*;
using CUevent = struct pretend_event*;
using CUmodule = struct pretend_module*;
using CUfunction = struct pretend_function*;
using CUmemoryPool = struct pretend_pool*;
using CUgraph = struct pretend_graph*;
using CUgraphExec = struct pretend_graph_exec*;

namespace pretend {

enum Code : int {
    SUCCESS = 0,
    INVALID_VALUE = 1,
    OUT_OF_MEMORY = 2,
    NOT_INITIALIZED = 3,
    NO_DEVICE = 100,
    INVALID_DEVICE = 101,
    INVALID_IMAGE = 200,
    INVALID_CONTEXT = 201,
    NO_BINARY_FOR_GPU = 209,
    INVALID_HANDLE = 400,
    ILLEGAL_STATE = 401,
    NOT_FOUND = 500,
    NOT_READY = 600,
    NOT_SUPPORTED = 801,
    CAPTURE_UNSUPPORTED = 900,
    CAPTURE_INVALIDATED = 901,
    CAPTURE_MERGE = 902,
    CAPTURE_UNMATCHED = 903,
    CAPTURE_UNJOINED = 904,
    CAPTURE_ISOLATION = 905,
    CAPTURED_EVENT = 907,
    CAPTURE_WRONG_THREAD = 908,
};

}  // namespace pretend

// One device is one context: its primary one.
struct pretend_device {
    int number = 0;
    int retained = 0;
    pretend::u64 total = 0, direct = 0;  // `direct`: given out by cuMemAlloc
    int dead = 0;                        // the sticky error, or 0
};

// A step of a captured graph. A branch other than 0 was another stream when it was captured.
struct pretend_node {
    enum Kind { RUN, RECORD, WAIT, BLANK } kind;
    pretend::u32 lane;
    pretend::u32 on;  // WAIT: the index of the record
    const char* name;
    std::function<void()> run;
};

struct pretend_graph {
    std::vector<pretend_node> nodes;
    pretend::u32 lanes = 0;
    int device = 0;
    pretend::u32 handed = 0;  // hand-outs of blocks until the end of the capture
};

struct pretend_capture {
    CUstream origin;
    std::thread::id thread;
    int mode;
    bool invalid = false;
    std::shared_ptr<pretend_graph> graph = std::make_shared<pretend_graph>();
    std::vector<CUstream> streams;                  // by lane
    std::vector<std::vector<pretend::u32>> joined;  // for each lane, how much of each lane comes before it
};

struct pretend_stream {
    pretend::Lane lane;
    unsigned flags = 0;
    std::shared_ptr<pretend_capture> capture;
    pretend::u32 capture_lane = 0;
};

struct pretend_event {
    int device = 0;
    unsigned flags = 0;
    bool recorded = false;
    double time = 0;
    pretend::Clock clock;
    // If it was last recorded in a capture: that capture, the record's index, and how much of each lane it covers.
    std::shared_ptr<pretend_capture> capture;
    pretend::u32 node = 0;
    std::vector<pretend::u32> covers;
};

struct pretend_pool {
    int device = 0;
    pretend::u64 max = 0, threshold = 0, used = 0, reserved = 0, used_high = 0, reserved_high = 0;
    pretend::u64 reuse[4] = {0, 1, 1, 1};
};

struct pretend_function {
    const char* name = nullptr;
    int device = 0;
    void (*run)(void**, const unsigned*, const unsigned*) = nullptr;
    std::vector<pretend::u32> parameters;
    int shared_limit = 49152;
    pretend::Image* image = nullptr;
};

struct pretend_module {
    int device = 0;
    std::string file;
    void* library = nullptr;
    std::shared_ptr<pretend::Image> image;
    std::map<std::string, std::unique_ptr<pretend_function>> functions;
};

struct pretend_graph_exec {
    std::shared_ptr<pretend_graph> graph;
    std::vector<pretend::Lane> lanes;  // of its branches; 0 is not used
    pretend::Clock done;               // the last launch
};

namespace pretend {

// The handles that are alive: a bad one is recognised without being followed.
template <typename T>
struct Handles {
    std::map<T*, std::unique_ptr<T>> alive;
    T* add(std::unique_ptr<T> one) {
        T* handle = one.get();
        alive.emplace(handle, std::move(one));
        return handle;
    }
    bool has(T* handle) const { return alive.count(handle) != 0; }
};

struct Driver {
    std::recursive_mutex lock;
    bool initialised = false;
    std::vector<std::unique_ptr<pretend_device>> devices;
    Handles<pretend_stream> streams;
    Handles<pretend_event> events;
    Handles<pretend_pool> pools;
    Handles<pretend_module> modules;
    std::set<CUfunction> functions;  // of the modules that are loaded
    Handles<pretend_graph_exec> execs;
    std::map<CUgraph, std::shared_ptr<pretend_graph>> graphs;
    std::set<std::shared_ptr<pretend_capture>> captures;  // under way
    std::set<std::string> mutations;

    bool mutated(const char* what) const { return !mutations.empty() && mutations.count(what); }
};

Driver& driver();
extern thread_local CUcontext current;

// Enters a call: takes the lock, counts it, and decides whether it may go on (`code` 0). NEEDS_CONTEXT: only with a
// current context. UNSAFE: not while this thread's captures (of whatever mode) or global ones are under way.
struct Call {
    enum Needs { NOTHING = 0, CONTEXT = 1, UNSAFE = 2 };
    explicit Call(const char* name, int needs = CONTEXT);
    std::unique_lock<std::recursive_mutex> held;
    int code = SUCCESS;
};
#define ENTER(...)          \
    Call call(__VA_ARGS__); \
    if (call.code) return call.code

u64 from_env(const char* name, u64 otherwise);
// The stream of a handle, with the checks that every use of one needs; null: its default stream.
CUresult stream_of(CUstream handle, CUstream& out);
void invalidate(pretend_capture& capture);
// The program's pool handed a block out: if that was in a capture, its bytes are uninitialised again at each replay.
void block_handed_out(u64 address, u64 bytes);
// Runs now as an operation of the stream, or records it if the stream is being captured.
CUresult submit(CUstream stream, const char* name, std::function<void()> run);
// As `submit`, but the stream must not be capturing: a refusal ends the capture.
CUresult refuse_capture(CUstream stream);
void host_waits(CUstream stream);
// A name that stays.
const char* intern(const std::string& name);

}  // namespace pretend

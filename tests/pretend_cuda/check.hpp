// The checker of the pretend driver: which operation used which bytes, and whether their order was asked for.
//
// Operations are numbered as they are submitted. A `Lane` is a stream (or a branch of a graph); its clock holds, for
// each lane, the last operation that it certainly comes after. Lane 0 is the host. Every four bytes of device and
// pinned memory have a `Cell` with their last uses; a use that does not come after them is reported.
// Inside a launch, `Local` does the same between CUDA threads, with barriers, fences and atomics as the order.
//
// Everything here is used under the driver's one lock. Device and pinned memory lie in one reserved range of
// addresses, and each table is indexed by the offset in it, so that looking something up is arithmetic.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

namespace pretend {

using u8 = std::uint8_t;
using u16 = std::uint16_t;
using u32 = std::uint32_t;
using u64 = std::uint64_t;

constexpr u32 LANES = 256;
constexpr int PINNED = -1;
constexpr u8 POISON = 0xCB;
constexpr u64 PAGE = 1 << 16;
// Values of `usable_`: bytes of a 256-byte piece that may be used (`HEAD`: a block begins here), or one of the others.
constexpr u16 UNMANAGED = 0, TAKEN_BACK = 0xFFFF, HEAD = 0x8000;

struct Clock {
    u32 seen[LANES] = {};
    void join(const Clock& other) {
        for (u32 i = 0; i < LANES; ++i)
            if (other.seen[i] > seen[i]) seen[i] = other.seen[i];
    }
};

struct Lane {
    u8 slot = 0;
    int device = 0;
    Clock clock;
};

struct Allocation {
    u64 lo = 0, hi = 0;
    int device = 0;
    bool freed = false;
    // The operations that allocated and freed it; 0: not in the order of a stream.
    u32 born = 0, died = 0;
    u8 born_on = 0;
    void* pool = nullptr;
    u64 charged = 0;
};

// The last uses of four bytes: operations and their lanes. `bytes`: which of them are initialised.
struct Cell {
    u32 write, read[2];
    u8 write_by, read_by[2], bytes;
};

// 4 KiB: unused, or all of its cells are `common` (large copies and fills), or it has cells of its own.
struct Page {
    enum State : u32 { UNUSED, COMMON, SPLIT };
    State state;
    Cell common;
};

// A use by a CUDA thread (block << 10 | thread), with its barriers and fences so far.
struct Touch {
    enum Kind : u8 { NONE, PLAIN, ATOMIC };
    u32 who;
    u16 epoch;
    u8 fences, kind;
};

// Uses inside the launch `age` (for shared memory: inside one block). `split`: single bytes have entries of their own.
struct Local {
    u32 age;
    Touch write, read[2];
    u32 split;
};

// A thread's atomic after a fence: what came before becomes visible to `to`, and at its next barrier to its block.
struct Release {
    u32 who;
    u16 epoch, fence_epoch;
    u8 fences;
    u32 to;
    u16 to_epoch;
};

// A loaded kernel library: where its fibers' stacks (private to a thread) and its `__shared__` variables are.
struct Image {
    void (*ranges)(unsigned long long out[4]);
    unsigned long long stack_lo, stack_hi, shared_lo, shared_hi;
    std::vector<Local> words, bytes;
};

class Checker {
public:
    void reserve(int devices, u64 bytes_each);
    // Fresh memory, poisoned; null if there are no addresses left.
    Allocation* allocate(int device, u64 bytes);
    // The allocation at `address`, also a freed one.
    Allocation* find(u64 address);
    bool inside(u64 address) const { return address - base_ < size_; }
    void retire(Allocation& allocation);

    // Gives the lane a slot; false if there is none.
    bool open(Lane& lane, int device);
    void close(const Lane& lane);
    Lane& host() { return host_; }
    void host_sees(const Clock& clock);

    // Begins an operation on `lane`; accesses belong to it until the next one begins.
    u32 begin(Lane& lane, const char* name);
    void begin_kernel(Image* image);
    void end_kernel() { image_ = nullptr; }
    void access(u64 address, u64 bytes, bool write);
    void check_free(const Allocation& allocation);
    // The program's own pool hands a block out or takes it back; how often it has handed one out; what is in it is
    // uninitialised.
    void block(u64 address, u64 bytes, bool handed_out);
    u32 handed() const { return handed_; }
    // Whether the address lies in what such a pool has or had.
    bool managed(u64 address) const { return usable_[(address - base_) >> 8] != UNMANAGED; }
    void blank(u64 address, u64 bytes);

    // From kernels: a plain access, an atomic one, a change of the running thread or of its barriers, a fence.
    void touch(u64 address, u32 bytes, bool write) { from_kernel(address, bytes, write ? WRITE : READ); }
    void atomic(u64 address, u32 bytes);
    void thread(u32 block, u32 thread, u32 epoch);
    void fence();
    void fault(const char* text) { report("kernel fault", op_, 0, std::string(text) + here()); }

    // `a` and `b` are operations; the same pair is reported once for each kind.
    void report(const std::string& kind, u32 a, u32 b, const std::string& detail, u64 address = 0);
    std::vector<std::string> violations;
    void clear() { violations.clear(), reported_.clear(); }
    // The running operation is a copy between devices.
    bool both_devices = false;
    // A graph runs: the hand-outs of blocks before its capture ended. 0: none runs.
    u32 replaying = 0;
    u32 current() const { return op_; }

private:
    enum How { READ, WRITE, ATOMIC };
    struct Name {
        u32 op;
        u8 slot;
        const char* text;
    };
    std::string describe(u32 op) const;
    std::string where(u64 address);
    u64 block_start(u64 address);
    bool usable_at(u64 address, u64 bytes, How how);
    void cell(Cell& cell, u64 address, u8 mask, How how, bool pinned);
    void split(u64 page);
    void cells(u64 address, u64 bytes, How how);
    void race(const char* kind, u32 other, u64 address);
    std::string here() const;
    void clash(const char* kind, const Touch& other, u64 address);
    bool sees(const Touch& touch) const;
    void local(Local* words, Local* bytes, u64 offset, u32 n, How how, u32 age, u64 address);
    void meet(Local& local, How how, u32 age, u64 address);
    void keep(Local& local, How how, u32 age);
    void shared(u64 address, u32 bytes, How how);
    void from_kernel(u64 address, u32 bytes, How how);

    u64 base_ = 0, size_ = 0, arena_ = 0;
    int arenas_ = 0;
    Cell* cells_ = nullptr;
    Local *words_ = nullptr, *bytes_ = nullptr;
    Page* pages_ = nullptr;
    u16* usable_ = nullptr;     // for each 256 bytes
    u32* handed_at_ = nullptr;  // for each 256 bytes: the number of the hand-out
    u32 handed_ = 1;
    u32* at_ = nullptr;      // for each `PAGE`: 1 + index of the allocation
    std::vector<u64> next_;  // the next fresh address of each arena
    std::vector<Allocation*> allocations_;
    std::vector<Allocation*> retired_;
    Allocation* last_ = nullptr;  // which operation `last_ok_` may use
    u32 last_ok_ = 0;

    Lane host_;
    u32 op_ = 0;
    Lane* lane_ = &host_;
    std::vector<Name> names_;
    std::vector<u8> free_slots_;
    u32 slots_ = 1;
    u32 last_on_[LANES] = {};
    std::unordered_set<u64> reported_;

    Image* image_ = nullptr;  // of the running kernel
    u32 me_ = 0, block_ = ~0u, shared_age_ = 0;
    u16 epoch_ = 0;
    u8 fence_count_ = 0;
    struct Fence {
        u16 epoch;
        u8 count;
    };
    std::unordered_map<u32, Fence> fences_;                               // by thread: its last one
    std::unordered_map<u64, std::unordered_map<u32, Release>> released_;  // by the atomic's address and by thread
    std::vector<Release> acquired_;                                       // by the running block
};

Checker& checker();

}  // namespace pretend

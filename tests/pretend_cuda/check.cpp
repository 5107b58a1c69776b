// The order of operations: memory and its cells, lanes and their clocks, reports.
#include "check.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <functional>

namespace pretend {

namespace {
constexpr u32 NAMES = 1 << 18;
constexpr u64 POISONED_AT_ONCE = 16 << 20;
constexpr size_t REPORTS_KEPT = 1000;

u64 round_up(u64 n, u64 to) { return (n + to - 1) / to * to; }

// `dense`: used in long stretches.
template <typename T>
T* zeroed(u64 count, bool dense = false) {
    void* p =
        mmap(nullptr, count * sizeof(T), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) {
        std::perror("pretend driver: no address space");
        std::abort();
    }
    madvise(p, count * sizeof(T), MADV_DONTDUMP);
    madvise(p, count * sizeof(T), dense ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
    return static_cast<T*>(p);
}

template <typename T>
void forget(T* table, u64 from, u64 to) {
    u64 lo = round_up(reinterpret_cast<u64>(table + from), 4096), hi = reinterpret_cast<u64>(table + to) & ~4095ull;
    if (lo >= hi) {
        std::memset(static_cast<void*>(table + from), 0, (to - from) * sizeof(T));
        return;
    }
    std::memset(static_cast<void*>(table + from), 0, lo - reinterpret_cast<u64>(table + from));
    madvise(reinterpret_cast<void*>(lo), hi - lo, MADV_DONTNEED);
    std::memset(reinterpret_cast<void*>(hi), 0, reinterpret_cast<u64>(table + to) - hi);
}

std::string hex(u64 n) {
    char text[32];
    std::snprintf(text, sizeof text, "0x%llx", static_cast<unsigned long long>(n));
    return text;
}
}  // namespace

Checker& checker() {
    static Checker* one = new Checker;  // never destroyed: kernels' libraries may outlive static objects
    return *one;
}

void Checker::reserve(int devices, u64 bytes_each) {
    // Freed addresses are not given out again until an arena is used up, so that late uses are still recognised.
    arena_ = round_up(std::max<u64>(8ull << 30, 4 * bytes_each), PAGE);
    arenas_ = devices + 1;
    size_ = arena_ * arenas_;
    base_ = reinterpret_cast<u64>(zeroed<u8>(size_ + PAGE));
    base_ = round_up(base_, PAGE);
    cells_ = zeroed<Cell>(size_ / 4, true);
    words_ = zeroed<Local>(size_ / 4, true);
    bytes_ = zeroed<Local>(size_);
    pages_ = zeroed<Page>(size_ >> 12);
    usable_ = zeroed<u16>(size_ >> 8);
    handed_at_ = zeroed<u32>(size_ >> 8);
    at_ = zeroed<u32>(size_ / PAGE);
    for (int i = 0; i < arenas_; ++i) next_.push_back(base_ + arena_ * i);
    names_.resize(NAMES);
    begin(host_, "start");
}

Allocation* Checker::allocate(int device, u64 bytes) {
    // One page stays free behind each allocation, so that running over its end meets no other.
    const u64 need = round_up(bytes, PAGE) + PAGE;
    const int arena = device == PINNED ? arenas_ - 1 : device;
    u64 at = next_[arena];
    if (at + need <= base_ + arena_ * (arena + 1)) {
        next_[arena] += need;
    } else {
        auto old = std::find_if(retired_.begin(), retired_.end(), [&](Allocation* a) {
            return a->device == device && round_up(a->hi - a->lo, PAGE) + PAGE >= need;
        });
        if (old == retired_.end()) return nullptr;
        at = (*old)->lo;
        retired_.erase(old);
    }
    auto* made = new Allocation;
    made->lo = at, made->hi = at + bytes, made->device = device;
    allocations_.push_back(made);
    const u64 offset = at - base_;
    for (u64 page = 0; page < round_up(bytes, PAGE) / PAGE; ++page)
        at_[offset / PAGE + page] = static_cast<u32>(allocations_.size());
    forget(cells_, offset / 4, round_up(offset + bytes, 4096) / 4);
    forget(pages_, offset >> 12, (round_up(offset + bytes, 4096)) >> 12);
    forget(usable_, offset >> 8, round_up(offset + bytes, 256) >> 8);
    forget(handed_at_, offset >> 8, round_up(offset + bytes, 256) >> 8);
    if (device != PINNED && bytes <= POISONED_AT_ONCE) std::memset(reinterpret_cast<void*>(at), POISON, bytes);
    return made;
}

Allocation* Checker::find(u64 address) {
    if (!inside(address)) return nullptr;
    const u32 index = at_[(address - base_) / PAGE];
    return index ? allocations_[index - 1] : nullptr;
}

// Its bytes and tables go back to the system; that it was freed stays known.
void Checker::retire(Allocation& allocation) {
    allocation.freed = true;
    allocation.died = op_;
    retired_.push_back(&allocation);
    const u64 lo = allocation.lo - base_, hi = round_up(allocation.hi - base_, PAGE);
    madvise(reinterpret_cast<void*>(allocation.lo), hi - lo, MADV_DONTNEED);
    forget(cells_, lo / 4, hi / 4);
    forget(words_, lo / 4, hi / 4);
    forget(bytes_, lo, hi);
}

// A slot is used again only when the host has seen all that happened on it: then nothing of it can be unordered.
bool Checker::open(Lane& lane, int device) {
    auto seen = [&](u8 slot) { return host_.clock.seen[slot] >= last_on_[slot]; };
    auto free = std::find_if(free_slots_.begin(), free_slots_.end(), seen);
    if (free != free_slots_.end()) {
        lane.slot = *free;
        free_slots_.erase(free);
    } else if (slots_ < LANES) {
        lane.slot = static_cast<u8>(slots_++);
    } else {
        return false;
    }
    lane.device = device;
    lane.clock = host_.clock;
    return true;
}

void Checker::close(const Lane& lane) { free_slots_.push_back(lane.slot); }

void Checker::host_sees(const Clock& clock) { host_.clock.join(clock); }

u32 Checker::begin(Lane& lane, const char* name) {
    if (&lane != &host_) lane.clock.join(host_.clock);
    lane_ = &lane;
    op_ += 1;
    lane.clock.seen[lane.slot] = op_;
    last_on_[lane.slot] = op_;
    names_[op_ % NAMES] = {op_, lane.slot, name};
    return op_;
}

std::string Checker::describe(u32 op) const {
    const Name& name = names_[op % NAMES];
    if (name.op != op) return "operation " + std::to_string(op);
    std::string text = std::string(name.text) + " (operation " + std::to_string(op) + ", ";
    return text + (name.slot ? "stream " + std::to_string(name.slot) : std::string("host")) + ")";
}

std::string Checker::where(u64 address) {
    Allocation* a = find(address);
    std::string text = "address " + hex(address);
    if (!a) return text + ", in no allocation";
    text += " = allocation " + hex(a->lo) + " + " + std::to_string(address - a->lo);
    text += a->device == PINNED ? ", pinned" : ", device " + std::to_string(a->device);
    return text + ", block at + " + std::to_string(block_start(address) - a->lo);
}

// The first byte of the block that the pool handed out, as far as it is known.
u64 Checker::block_start(u64 address) {
    Allocation* a = find(address);
    u64 piece = (address - base_) >> 8;
    const u64 first = (a->lo - base_) >> 8;
    while (piece > first && usable_[piece] != UNMANAGED && usable_[piece] != TAKEN_BACK && !(usable_[piece] & HEAD))
        --piece;
    return base_ + (piece << 8);
}

void Checker::report(const std::string& kind, u32 a, u32 b, const std::string& detail, u64 address) {
    const u64 key = std::hash<std::string>{}(kind) ^ (static_cast<u64>(a) << 32 | b) * 0x9E3779B97F4A7C15ull;
    if (!reported_.insert(key).second || violations.size() >= REPORTS_KEPT) return;
    std::string text = kind + ": " + describe(a);
    if (b) text += " and " + describe(b);
    if (!detail.empty()) text += ", " + detail;
    if (address) text += "; " + where(address);
    violations.push_back(text);
}

void Checker::race(const char* kind, u32 other, u64 address) {
    report(kind, op_, other, "nothing orders them", address);
}

// Whether there is an allocation to use at all; its cells are the next question.
bool Checker::usable_at(u64 address, u64 bytes, How how) {
    if (last_ && address >= last_->lo && address + bytes <= last_->hi && !last_->freed && last_ok_ == op_) {
        // the usual case: the same allocation as before, by the same operation
    } else {
        Allocation* a = find(address);
        if (!a || address < a->lo || address >= a->hi || address + bytes > a->hi) {
            report("use outside of every allocation", op_, 0, std::to_string(bytes) + " bytes", address);
            return false;
        }
        if (a->freed) {
            report("use of freed memory", op_, a->died, "", address);
            return false;
        }
        if (a->device != PINNED && a->device != lane_->device && !both_devices)
            report("use of another device's memory", op_, 0, "by device " + std::to_string(lane_->device), address);
        if (a->born && lane_->clock.seen[a->born_on] < a->born)
            race("use not ordered after the allocation", a->born, address);
        last_ = a, last_ok_ = op_;
    }
    const u64 offset = address - base_;
    for (u64 piece = offset >> 8; piece <= (offset + bytes - 1) >> 8; ++piece) {
        const u16 state = usable_[piece];
        if (state == UNMANAGED) continue;
        // A graph may use what its capture used, also if the program let go of it, as long as nobody else gets it. The
        // sizes known here may be those of other blocks that the capture had in the same place.
        if (replaying && handed_at_[piece] > replaying) {
            report("use by a graph of a block that was handed out after its capture", op_, 0, "",
                   base_ + std::max(offset, piece << 8));
            return false;
        }
        if (replaying) continue;
        const u64 end = std::min(offset + bytes, (piece + 1) << 8) - (piece << 8);
        if (state == TAKEN_BACK) {
            report("use of a block that the pool took back", op_, 0, "", base_ + std::max(offset, piece << 8));
            return false;
        }
        if (end > (state & ~HEAD) && how != ATOMIC) {
            report("use past the end of a block", op_, 0, "", base_ + std::max(offset, (piece << 8) + (state & ~HEAD)));
            return false;
        }
    }
    return true;
}

void Checker::cell(Cell& c, u64 address, u8 mask, How how, bool pinned) {
    const u32* seen = lane_->clock.seen;
    if (c.write && seen[c.write_by] < c.write)
        race(how == READ ? "race: read after write" : "race: write after write", c.write, address);
    if (how == READ) {
        // Host writes into pinned memory cannot be seen, so that its bytes count as initialised, but for those of
        // blocks, which the host does not write.
        if ((c.bytes & mask) != mask && !(pinned && !managed(address)))
            report("read of uninitialised memory", op_, 0, "", address), c.bytes |= mask;
        if (c.read[0] == op_ || c.read[1] == op_) return;
        int at = 1;
        for (int i = 0; i < 2; ++i)
            if (!c.read[i] || c.read_by[i] == lane_->slot || seen[c.read_by[i]] >= c.read[i]) {
                at = i;
                break;
            }
        c.read[at] = op_, c.read_by[at] = lane_->slot;
        return;
    }
    for (int i = 0; i < 2; ++i)
        if (c.read[i] && seen[c.read_by[i]] < c.read[i]) race("race: write after read", c.read[i], address);
    c.write = op_, c.write_by = lane_->slot;
    c.read[0] = c.read[1] = 0;
    c.bytes |= mask;
}

// The cells of a page, made from what all of them have in common.
void Checker::split(u64 page) {
    if (pages_[page].state == Page::COMMON) std::fill_n(cells_ + (page << 10), 1024, pages_[page].common);
    pages_[page].state = Page::SPLIT;
}

void Checker::cells(u64 address, u64 bytes, How how) {
    const bool pinned = address - base_ >= arena_ * (arenas_ - 1);
    u64 offset = address - base_;
    const u64 end = offset + bytes;
    while (offset < end) {
        const u64 number = offset >> 12, stop = std::min((offset | 4095) + 1, end);
        Page& page = pages_[number];
        const bool whole = stop - offset == 4096;
        if (whole && page.state != Page::SPLIT) {
            page.state = Page::COMMON;
            cell(page.common, base_ + offset, 0xF, how, pinned);
            offset = stop;
            continue;
        }
        if (page.state != Page::SPLIT) split(number);
        while (offset < stop) {
            const u64 next = std::min((offset | 3) + 1, stop);
            cell(cells_[offset >> 2], base_ + offset, static_cast<u8>(((1u << (next - offset)) - 1) << (offset & 3)),
                 how, pinned);
            offset = next;
        }
        if (whole && how == WRITE) page.state = Page::COMMON, page.common = cells_[number << 10];
    }
}

void Checker::access(u64 address, u64 bytes, bool write) {
    if (bytes == 0) return;
    const How how = write ? WRITE : READ;
    if (!inside(address)) {
        report("use outside of every allocation", op_, 0, std::to_string(bytes) + " bytes", address);
    } else if (usable_at(address, bytes, how)) {
        cells(address, bytes, how);
    }
}

// Freeing is a use of all bytes: whatever used them must come before it.
void Checker::check_free(const Allocation& allocation) {
    const u32* seen = lane_->clock.seen;
    const u64 lo = allocation.lo - base_, hi = allocation.hi - base_;
    if (allocation.born && seen[allocation.born_on] < allocation.born)
        race("free not ordered after the allocation", allocation.born, allocation.lo);
    for (u64 offset = lo; offset < hi; offset += 4) {
        const Page& page = pages_[offset >> 12];
        const Cell& c = page.state == Page::SPLIT ? cells_[offset >> 2] : page.common;
        u32 late = c.write && seen[c.write_by] < c.write ? c.write : 0;
        for (int i = 0; i < 2; ++i)
            if (c.read[i] && seen[c.read_by[i]] < c.read[i]) late = c.read[i];
        if (late) race("race: free after use", late, base_ + offset);
        if (page.state != Page::SPLIT) offset |= 4092;
    }
}

// The program's own pool hands a block out or takes it back. Its last uses stay in the books: the next user must come
// after them.
void Checker::block(u64 address, u64 bytes, bool handed_out) {
    Allocation* a = find(address);
    const char* what = handed_out ? "a block was handed out" : "a block was taken back";
    if (!a || a->freed || address + bytes > a->hi || (address & 255) || bytes == 0) {
        report(std::string(what) + " that is no memory of the driver's", op_, 0, std::to_string(bytes) + " bytes",
               address);
        return;
    }
    const u64 offset = address - base_, end = offset + bytes;
    bool twice = false;
    handed_ += handed_out;
    for (u64 piece = offset >> 8; piece << 8 < end; ++piece) {
        u16& state = usable_[piece];
        const u16 all = static_cast<u16>(std::min<u64>(256, end - (piece << 8)));
        twice |= handed_out ? state != UNMANAGED && state != TAKEN_BACK : state == TAKEN_BACK;
        state = handed_out ? static_cast<u16>(all | (piece == offset >> 8 ? HEAD : 0)) : TAKEN_BACK;
        if (handed_out) handed_at_[piece] = handed_;
    }
    if (twice) report(std::string(what) + " twice", op_, 0, std::to_string(bytes) + " bytes", address);
    if (handed_out) blank(address, bytes);
}

// The bytes are uninitialised.
void Checker::blank(u64 address, u64 bytes) {
    const u64 offset = address - base_, end = offset + bytes;
    std::memset(reinterpret_cast<void*>(address), POISON, bytes);
    for (u64 at = offset, stop; at < end; at = stop) {
        stop = std::min((at | 4095) + 1, end);
        Page& page = pages_[at >> 12];
        if (stop - at == 4096) page.common.bytes = 0;
        if (page.state == Page::COMMON && stop - at < 4096) split(at >> 12);
        if (page.state == Page::SPLIT)
            for (u64 i = at >> 2; i < (stop + 3) >> 2; ++i) cells_[i].bytes = 0;
    }
}

}  // namespace pretend

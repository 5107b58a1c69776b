// Inside one launch: whether CUDA threads that touch one cell are ordered by a barrier, or by a fence and an atomic.
//
// The blocks of a launch run one after another here, and so do a block's threads between two barriers. That is one
// valid order; what is judged is whether the program asks for it. A use of a cell is kept with its thread and with the
// numbers of barriers (`epoch`) and fences that the thread had passed. Another thread of the block comes after it when
// a barrier lies between. A thread of another block comes after it when the writer's block made it visible (fence,
// then an atomic operation) and the reader's block has since done an atomic operation on the same address.
#include <algorithm>
#include <cstdio>

#include "check.hpp"

namespace pretend {

void Checker::begin_kernel(Image* image) {
    image_ = image;
    block_ = ~0u, me_ = 0, epoch_ = 0, fence_count_ = 0;
    fences_.clear();
    released_.clear();
    acquired_.clear();
}

void Checker::thread(u32 block, u32 thread, u32 epoch) {
    if (block != block_) {
        block_ = block;
        shared_age_ += 1;
        acquired_.clear();
    }
    me_ = block << 10 | thread;
    epoch_ = static_cast<u16>(epoch);
    auto fence = fences_.empty() ? fences_.end() : fences_.find(me_);
    fence_count_ = fence == fences_.end() ? 0 : fence->second.count;
}

void Checker::fence() {
    fence_count_ = static_cast<u8>(std::min(255, fence_count_ + 1));
    fences_[me_] = {epoch_, fence_count_};
}

// Receives what earlier atomics on the address made visible, and makes visible what this thread fenced.
void Checker::atomic(u64 address, u32 bytes) {
    from_kernel(address, bytes, ATOMIC);
    auto old = released_.find(address);
    if (old != released_.end())
        for (auto [who, r] : old->second) {
            if (who >> 10 == block_) continue;
            r.to = me_, r.to_epoch = epoch_;
            acquired_.push_back(r);
        }
    auto fence = fences_.empty() ? fences_.end() : fences_.find(me_);
    if (fence == fences_.end()) return;
    // A later release by the same thread covers its earlier ones.
    auto& all = released_[address];
    for (const Release& r : acquired_)
        if (r.to == me_ || r.to_epoch < epoch_) all[r.who] = r;
    all[me_] = {me_, epoch_, fence->second.epoch, fence->second.count, 0, 0};
}

// Whether the running thread certainly comes after `touch`.
bool Checker::sees(const Touch& touch) const {
    if (touch.kind == Touch::NONE || touch.who == me_) return true;
    if (touch.who >> 10 == block_) return touch.epoch < epoch_;
    for (const Release& r : acquired_) {
        if (r.who >> 10 != touch.who >> 10 || (r.to != me_ && r.to_epoch >= epoch_)) continue;
        if (r.who == touch.who) {
            if (touch.fences < r.fences) return true;
        } else if (touch.epoch < r.epoch) {
            // A barrier lies between it and the atomic; the fence is the releasing thread's, or the writer's own.
            auto own = fences_.find(touch.who);
            if (touch.epoch < r.fence_epoch || (own != fences_.end() && own->second.count > touch.fences)) return true;
        }
    }
    return false;
}

std::string Checker::here() const {
    if (block_ == ~0u) return "";
    return ", block " + std::to_string(block_) + " thread " + std::to_string(me_ & 1023);
}

void Checker::clash(const char* kind, const Touch& other, u64 address) {
    const std::string them = "block " + std::to_string(other.who >> 10) + " thread " + std::to_string(other.who & 1023);
    report(kind, op_, 0, "no barrier or fenced atomic between " + them + " and" + here().substr(1), address);
}

void Checker::meet(Local& l, How how, u32 age, u64 address) {
    if (l.age != age) return;
    const bool both_atomic = how == ATOMIC && l.write.kind == Touch::ATOMIC;
    if (!both_atomic && !sees(l.write))
        clash(how == READ ? "race in a launch: read after write" : "race in a launch: two writes", l.write, address);
    if (how == READ) return;
    for (const Touch& read : l.read)
        if (!sees(read)) clash("race in a launch: write after read", read, address);
}

void Checker::keep(Local& l, How how, u32 age) {
    if (l.age != age) l = Local{}, l.age = age;
    const Touch now{me_, epoch_, fence_count_, how == ATOMIC ? Touch::ATOMIC : Touch::PLAIN};
    if (how != READ) {
        l.write = now;
        l.read[0] = l.read[1] = Touch{};
    } else if (l.read[0].who == me_ || sees(l.read[0])) {
        l.read[0] = now;
    } else {
        l.read[1] = now;
    }
}

// Whole words have entries, and so do the single bytes of words that were used by the byte.
void Checker::local(Local* words, Local* bytes, u64 offset, u32 n, How how, u32 age, u64 address) {
    const u64 end = offset + n;
    if ((offset | n) & 3) {
        for (; offset < end; ++offset, ++address) {
            Local& word = words[offset >> 2];
            meet(word, how, age, address);
            meet(bytes[offset], how, age, address);
            if (word.age != age) word = Local{}, word.age = age;
            word.split = 1;
            keep(bytes[offset], how, age);
        }
        return;
    }
    for (; offset < end; offset += 4, address += 4) {
        Local& word = words[offset >> 2];
        if (word.age == age) meet(word, how, age, address);
        if (word.age == age && word.split)
            for (int i = 0; i < 4; ++i) meet(bytes[offset + i], how, age, address + i);
        keep(word, how, age);
    }
}

void Checker::shared(u64 address, u32 n, How how) {
    const u64 offset = address - image_->shared_lo, size = image_->shared_hi - image_->shared_lo;
    if (image_->words.size() < size / 4 + 1) image_->words.resize(size / 4 + 1), image_->bytes.resize(size + 4);
    if (how == READ)
        for (u64 i = offset; i < offset + n; ++i) {
            const Local &word = image_->words[i >> 2], &byte = image_->bytes[i];
            const bool written =
                (word.age == shared_age_ && word.write.kind) || (byte.age == shared_age_ && byte.write.kind);
            if (!written) {
                report("read of uninitialised shared memory", op_, 0, "shared + " + std::to_string(i) + here());
                return;
            }
        }
    local(image_->words.data(), image_->bytes.data(), offset, n, how, shared_age_, address);
}

void Checker::from_kernel(u64 address, u32 n, How how) {
    if (!image_) return;
    if (inside(address)) {
        if (!usable_at(address, n, how)) return;
        // Single bytes are changed by an atomic on their whole word, which may reach bytes that nobody has written.
        const u64 offset = address - base_;
        if (how == ATOMIC && pages_[offset >> 12].state != Page::SPLIT) split(offset >> 12);
        u8& known = cells_[offset >> 2].bytes;
        const u8 before = known;
        const bool part = how == ATOMIC && before != 0 && before != 0xF;
        if (how == ATOMIC && !part) cells(address, n, READ);
        cells(address, n, how == READ ? READ : WRITE);
        if (part) known = before;
        local(words_, bytes_, offset, n, how, op_, address);
        return;
    }
    auto in = [&](u64 lo, u64 hi) { return address >= lo && address + n <= hi; };
    if (in(image_->stack_lo, image_->stack_hi)) return;
    if (in(image_->shared_lo, image_->shared_hi)) return shared(address, n, how);
    unsigned long long now[4] = {};
    if (image_->ranges) image_->ranges(now);
    if (in(now[0], now[1]) || in(now[2], now[3])) {
        image_->stack_lo = now[0], image_->stack_hi = now[1], image_->shared_lo = now[2], image_->shared_hi = now[3];
        return from_kernel(address, n, how);
    }
    // The access itself comes next and may end the process, so this is said at once.
    const size_t before = violations.size();
    report("use outside of every allocation", op_, 0, std::to_string(n) + " bytes" + here(), address);
    if (violations.size() > before) std::fprintf(stderr, "pretend driver: %s\n", violations.back().c_str());
}

}  // namespace pretend

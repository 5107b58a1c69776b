// The pretend libnccl: ranks of one process, each used by a thread of its own. A sum is two operations of the stream in
// the pretend driver: one reads, and when all ranks have come to it, the other one writes.
//
// As in the real library, each rank has a device of its own, all make the same calls, and a rank that does not come lets
// the others wait. Unlike there, they wait on the host, and a rank that is aborted lets them go with an error.
#include <array>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <vector>

#include "library.hpp"

namespace {
enum Result { OK = 0, SYSTEM_FAILED = 2, INVALID_ARGUMENT = 4, INVALID_USAGE = 5, REMOTE_FAILED = 6 };
using Id = std::array<char, 128>;

struct Group {
    int ranks = 0, joined = 0, here = 0;
    bool unusable = false, aborted = false;
    std::set<int> numbers, devices;
    std::vector<std::vector<double>> brought;
    u64 rounds = 0;
    std::vector<double> sums;
    bool equal = true;
};

struct Comm {
    std::shared_ptr<Group> group;
    int number;
};

std::mutex lock;
std::condition_variable changed;
std::map<Id, std::shared_ptr<Group>>& groups() {
    static auto* all = new std::map<Id, std::shared_ptr<Group>>;
    return *all;
}
std::set<Comm*>& comms() {
    static auto* all = new std::set<Comm*>;
    return *all;
}

// `cudaDataType` of a `ncclDataType_t`, or -1.
int type_of(int dtype) {
    switch (dtype) {
        case 6: return F16;
        case 7: return F32;
        case 8: return F64;
        case 9: return BF16;
        default: return -1;
    }
}

struct Part {
    u64 at, count;
    int type;
    std::vector<double>* numbers;
};

void read(void* context) {
    const Part& part = *static_cast<Part*>(context);
    pretend_access(part.at, part.count * size_of(part.type), 0);
    for (u64 i = 0; i < part.count; ++i) part.numbers->push_back(get(part.at + i * size_of(part.type), part.type));
}

void write(void* context) {
    const Part& part = *static_cast<Part*>(context);
    pretend_access(part.at, part.count * size_of(part.type), 1);
    for (u64 i = 0; i < part.count; ++i) put(part.at + i * size_of(part.type), part.type, (*part.numbers)[i]);
}

// Waits for all ranks, and answers with the sums.
int meet(Comm& comm, std::vector<double>& numbers) {
    std::unique_lock<std::mutex> held(lock);
    Group& group = *comm.group;
    if (group.aborted) return REMOTE_FAILED;
    const u64 round = group.rounds;
    group.brought[static_cast<size_t>(comm.number)] = numbers;
    if (++group.here == group.ranks) {
        group.here = 0;
        group.sums.assign(numbers.size(), 0);
        group.equal = true;
        for (const auto& one : group.brought) {
            group.equal &= one.size() == numbers.size();
            for (size_t i = 0; i < one.size() && i < numbers.size(); ++i) group.sums[i] += one[i];
        }
        ++group.rounds;
        changed.notify_all();
    }
    changed.wait(held, [&] { return group.rounds != round || group.aborted; });
    if (group.rounds == round) return REMOTE_FAILED;
    if (!group.equal) return INVALID_USAGE;
    numbers = group.sums;
    return OK;
}
}  // namespace

struct ncclUniqueId {
    char internal[128];
};

API int ncclGetVersion(int* version) {
    if (const int code = pretend_enter("ncclGetVersion", 0)) return code;
    if (!version) return INVALID_ARGUMENT;
    *version = 22005;
    return OK;
}

API int ncclGetUniqueId(ncclUniqueId* out) {
    if (const int code = pretend_enter("ncclGetUniqueId", 0)) return code;
    if (!out) return INVALID_ARGUMENT;
    static int count = 0;
    std::lock_guard<std::mutex> guard(lock);
    std::memset(out->internal, 0x9c, sizeof out->internal);
    ++count;
    std::memcpy(out->internal, &count, sizeof count);
    return OK;
}

API int ncclCommInitRank(void** out, int ranks, ncclUniqueId id, int number) {
    if (const int code = pretend_enter("ncclCommInitRank", 1)) return code;
    if (!out || ranks < 1 || number < 0 || number >= ranks) return INVALID_ARGUMENT;
    Id key;
    std::memcpy(key.data(), id.internal, key.size());
    std::unique_lock<std::mutex> held(lock);
    auto& place = groups()[key];
    if (!place) {
        place = std::make_shared<Group>();
        place->ranks = ranks;
        place->brought.resize(static_cast<size_t>(ranks));
    }
    auto group = place;
    if (group->ranks != ranks || !group->numbers.insert(number).second) return INVALID_USAGE;
    // One device for two ranks is refused on all of them.
    group->unusable |= !group->devices.insert(pretend_current_device()).second;
    ++group->joined;
    changed.notify_all();
    changed.wait(held, [&] { return group->joined == ranks; });
    if (group->unusable) return INVALID_USAGE;
    auto* comm = new Comm{group, number};
    comms().insert(comm);
    *out = comm;
    return OK;
}

API int ncclCommAbort(void* handle) {
    if (const int code = pretend_enter("ncclCommAbort", 1)) return code;
    std::lock_guard<std::mutex> guard(lock);
    auto* comm = static_cast<Comm*>(handle);
    if (!comms().erase(comm)) return INVALID_ARGUMENT;
    comm->group->aborted = true;
    changed.notify_all();
    delete comm;
    return OK;
}

API int ncclCommGetAsyncError(void* handle, int* fault) {
    if (const int code = pretend_enter("ncclCommGetAsyncError", 1)) return code;
    std::lock_guard<std::mutex> guard(lock);
    auto* comm = static_cast<Comm*>(handle);
    if (!comms().count(comm) || !fault) return INVALID_ARGUMENT;
    *fault = comm->group->aborted ? REMOTE_FAILED : OK;
    return OK;
}

API int ncclAllReduce(const void* from, void* to, size_t count, int dtype, int operation, void* handle, void* stream) {
    {
        std::lock_guard<std::mutex> guard(lock);
        if (!comms().count(static_cast<Comm*>(handle))) return INVALID_ARGUMENT;
    }
    const int type = type_of(dtype);
    if (type < 0 || operation != 0 || pretend_capturing(stream)) return INVALID_ARGUMENT;
    std::vector<double> numbers;
    const Part source{reinterpret_cast<u64>(from), count, type, &numbers};
    if (const int code = pretend_operation(stream, "ncclAllReduce", read, &source, sizeof source)) return code;
    if (const int code = meet(*static_cast<Comm*>(handle), numbers)) return code;
    const Part target{reinterpret_cast<u64>(to), count, type, &numbers};
    return pretend_operation(stream, "ncclAllReduce: the sums", write, &target, sizeof target) ? SYSTEM_FAILED : OK;
}

// libnccl.so.2 on the host: the calls, their checks, and groups.
//
// Where NCCL would hang, as with counts that differ between ranks, the communicator has an error. HOST_NCCL_VERSION is
// the number it tells.

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <utility>

#include "comm.h"
#include "device.h"
#include "launch.h"
#include "log.h"
#include "reduce.h"

using namespace host_nccl;

// What the user holds. It is never freed, so that a stale one is known as such.
struct ncclComm {
    std::shared_ptr<Communicator> communicator;  // null while it starts
    std::shared_ptr<Progress> progress;          // null: it blocks
    bool ended = false;
    // A smaller one, and where its address is wanted once it is there.
    ncclComm_t child = nullptr;
    ncclComm_t* child_at = nullptr;
};

namespace {

constexpr int kShrinkAborts = 1;
constexpr int kSharingVersion = 23000;  // from which on several ranks may be on one GPU

std::mutex handles_lock;
std::set<ncclComm_t>& handles() {
    static auto* all = new std::set<ncclComm_t>;
    return *all;
}

// -- groups: what a thread calls between ncclGroupStart and ncclGroupEnd

struct Group {
    int depth = 0;
    ncclResult_t error = ncclSuccess;
    std::vector<std::function<ncclResult_t()>> starts;
    std::vector<Issue> issues;
};

thread_local Group group;

// An error within a group is also that of the group.
ncclResult_t note(ncclResult_t result) {
    if (result && group.depth && !group.error) group.error = result;
    return result;
}

// With handles_lock held.
ncclResult_t check_handle(ncclComm_t handle, const char* call) {
    if (!handle || !handles().count(handle)) return refuse(ncclInvalidArgument, "%s: no communicator", call);
    if (handle->ended)
        return refuse(ncclInvalidArgument, "%s: the communicator was destroyed or aborted before", call);
    return ncclSuccess;
}

ncclResult_t find(ncclComm_t handle, const char* call, std::shared_ptr<Communicator>* communicator) {
    std::lock_guard<std::mutex> hold(handles_lock);
    TRY(check_handle(handle, call));
    *communicator = handle->communicator;
    if (!*communicator) return refuse(ncclInvalidUsage, "%s: the communicator is in progress, or did not start", call);
    return ncclSuccess;
}

// With handles_lock held: the address of a smaller communicator that is there now.
void deliver_child(ncclComm_t parent) {
    if (!parent->child) return;
    *parent->child_at = std::exchange(parent->child, nullptr);
}

ncclComm_t make_handle(std::shared_ptr<Communicator> communicator, std::shared_ptr<Progress> progress) {
    std::lock_guard<std::mutex> hold(handles_lock);
    auto* handle = new ncclComm{std::move(communicator), std::move(progress)};
    handles().insert(handle);
    return handle;
}

int version() {
    static const int told = int(number("HOST_NCCL_VERSION", 23203));
    return told;
}

// As NCCL: NCCL_HOSTID, read once, stands for the host.
uint64_t host_hash() {
    static const uint64_t hash = [] {
        char name[256] = "";
        gethostname(name, sizeof(name) - 1);
        const char* given = getenv("NCCL_HOSTID");
        return uint64_t(std::hash<std::string>()(given && *given ? given : name));
    }();
    return hash;
}

// -- start-up

ncclResult_t start(std::shared_ptr<Communicator>* communicator, const ncclUniqueId& id, int rank, int world_size,
                   int device, std::shared_ptr<Progress> progress, const std::atomic<bool>* aborted) {
    OnDevice current(device);
    std::string identity;
    TRY(identify_device(device, &identity));
    bool shares = version() >= kSharingVersion && flag("NCCL_MULTI_RANK_GPU_ENABLE", false);
    std::unique_ptr<World> world;
    TRY(World::join(id, rank, world_size, version(), host_hash(), identity, shares, aborted, &world));
    *communicator = std::make_shared<Communicator>(std::move(world), device, std::move(progress));
    return ncclSuccess;
}

ncclResult_t start_blocking(ncclComm_t* handle, const ncclUniqueId& id, int rank, int world_size, int device) {
    std::shared_ptr<Communicator> communicator;
    TRY(start(&communicator, id, rank, world_size, device, nullptr, nullptr));
    *handle = make_handle(std::move(communicator), nullptr);
    return ncclSuccess;
}

ncclResult_t start_beside(ncclComm_t* handle, const ncclUniqueId& id, int rank, int world_size, int device) {
    auto progress = std::make_shared<Progress>();
    ncclComm_t made = *handle = make_handle(nullptr, progress);
    progress->begin([=] {
        std::shared_ptr<Communicator> communicator;
        TRY(start(&communicator, id, rank, world_size, device, progress, &progress->aborted));
        std::lock_guard<std::mutex> hold(handles_lock);
        made->communicator = std::move(communicator);
        return ncclSuccess;
    });
    return ncclInProgress;
}

// The communicator of the ranks in the bit mask `left`, all of whom call this: the first of them makes the id.
ncclResult_t start_smaller(std::shared_ptr<Communicator>* communicator, Communicator& parent, uint64_t left,
                           const std::shared_ptr<Progress>& progress) {
    World& world = *parent.world;
    const uint32_t turn = ++parent.shrinks;
    const int first = __builtin_ctzll(left), rank = world.rank();
    Seat& seat = world.seat(first);
    if (rank == first) {
        TRY(World::make_id(&seat.child));
        seat.children = turn;
        world.ring_all();
    }
    int lost = -1;
    auto ready = [&] { return seat.children >= turn; };
    const std::atomic<bool>* aborted = progress ? &progress->aborted : nullptr;
    Waited how = world.wait(ready, [&] { return uint64_t(1) << first; }, aborted, &lost);
    if (how == Waited::kAborted) return refuse(ncclInternalError, "rank %d: aborted while it shrank", rank);
    if (how == Waited::kLost) return refuse(ncclRemoteError, "rank %d shrinks: rank %d has gone", rank, first);
    const uint64_t before = left & ((uint64_t(1) << rank) - 1);
    return start(communicator, seat.child, __builtin_popcountll(before), __builtin_popcountll(left), parent.device,
                 progress ? std::make_shared<Progress>() : nullptr, aborted);
}

// The communicator of all ranks of `parent`, in their order, and those that come in: one of the ranks has the id.
ncclResult_t start_larger(std::shared_ptr<Communicator>* communicator, Communicator& parent, int world_size,
                          bool has_id, const std::shared_ptr<Progress>& progress) {
    World& world = *parent.world;
    const uint32_t turn = ++parent.grows;
    if (has_id) {
        world.mine().growths = turn;
        world.ring_all();
    }
    int root = -1, lost = -1;
    auto ready = [&] {
        for (root = world.size() - 1; root >= 0 && world.seat(root).growths < turn; --root) {
        }
        return root >= 0;
    };
    const std::atomic<bool>* aborted = progress ? &progress->aborted : nullptr;
    Waited how = world.wait(ready, [&] { return world.others(); }, aborted, &lost);
    if (how == Waited::kAborted) return refuse(ncclInternalError, "rank %d: aborted while it grew", world.rank());
    if (how == Waited::kLost) return refuse(ncclRemoteError, "rank %d grows: rank %d has gone", world.rank(), lost);
    return start(communicator, world.seat(root).growth, world.rank(), world_size, parent.device,
                 progress ? std::make_shared<Progress>() : nullptr, aborted);
}

// Runs starts beside each other, since each waits for the others; the first error.
ncclResult_t start_all(const std::vector<std::function<ncclResult_t()>>& starts) {
    std::vector<ncclResult_t> results(starts.size(), ncclSuccess);
    std::vector<std::thread> threads;
    for (size_t i = 1; i < starts.size(); ++i) threads.emplace_back([&, i] { results[i] = starts[i](); });
    if (!starts.empty()) results[0] = starts[0]();
    for (std::thread& thread : threads) thread.join();
    for (ncclResult_t result : results) TRY(result);
    return ncclSuccess;
}

ncclResult_t start_or_group(std::function<ncclResult_t()> job) {
    if (!group.depth) return job();
    group.starts.push_back(std::move(job));
    return ncclSuccess;
}

ncclResult_t check_config(const ncclConfig_t* config) {
    if (!config) return ncclSuccess;
    if (config->magic != NCCL_API_MAGIC) return refuse(ncclInvalidArgument, "the configuration is not initialized");
    return ncclSuccess;
}

ncclResult_t init_rank(ncclComm_t* comm, int nranks, const ncclUniqueId& id, int rank, const ncclConfig_t* config) {
    if (!comm) return refuse(ncclInvalidArgument, "ncclCommInitRank: comm is null");
    *comm = nullptr;
    TRY(check_config(config));
    if (nranks < 1 || rank < 0 || rank >= nranks)
        return refuse(ncclInvalidArgument, "ncclCommInitRank: rank %d of %d", rank, nranks);
    if (nranks > kMaxRanks) return refuse(ncclInvalidArgument, "more than %d ranks are not supported", kMaxRanks);
    int device = 0;
    TRY(check_cuda(cudaGetDevice(&device), "the current device"));
    if (config && config->blocking == 0) {
        if (group.depth) return refuse(ncclInvalidUsage, "the start of what does not block in a group is not supported");
        return start_beside(comm, id, rank, nranks, device);
    }
    return start_or_group([=] { return start_blocking(comm, id, rank, nranks, device); });
}

// -- work

ncclResult_t issue(Issue work) {
    if (!group.depth) {
        std::vector<Issue> alone;
        alone.push_back(std::move(work));
        return launch_all(std::move(alone));
    }
    group.issues.push_back(std::move(work));
    return ncclSuccess;
}

ncclResult_t message(const char* call, bool sends, const void* buffer, size_t count, ncclDataType_t datatype, int peer,
                     ncclComm_t comm, cudaStream_t stream) {
    std::shared_ptr<Communicator> communicator;
    TRY(find(comm, call, &communicator));
    size_t size = size_of(datatype);
    if (!size) return refuse(ncclInvalidArgument, "%s: datatype %d is not supported", call, int(datatype));
    if (peer < 0 || peer >= communicator->world->size())
        return refuse(ncclInvalidArgument, "%s: peer %d of %d ranks", call, peer, communicator->world->size());
    TRY(check_stream(stream, communicator->device, call));
    TRY(check_memory(buffer, count * size, communicator->device, call, sends ? "sendbuff" : "recvbuff"));
    Issue work{communicator, stream, {}, {}};
    work.messages.push_back({sends, reinterpret_cast<uint64_t>(buffer), count * size, peer});
    return issue(std::move(work));
}

ncclResult_t all_reduce(const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype, int op,
                        ncclComm_t comm, cudaStream_t stream) {
    const char* call = "ncclAllReduce";
    std::shared_ptr<Communicator> communicator;
    TRY(find(comm, call, &communicator));
    uint64_t size = size_of(datatype);
    if (!size) return refuse(ncclInvalidArgument, "%s: datatype %d is not supported", call, int(datatype));
    if (op < 0 || op >= ncclNumOps) return refuse(ncclInvalidArgument, "%s: op %d is not supported", call, op);
    TRY(check_stream(stream, communicator->device, call));
    if (count == 0) return ncclSuccess;
    TRY(check_memory(sendbuff, count * size, communicator->device, call, "sendbuff"));
    TRY(check_memory(recvbuff, count * size, communicator->device, call, "recvbuff"));
    auto source = reinterpret_cast<uint64_t>(sendbuff), target = reinterpret_cast<uint64_t>(recvbuff);
    if (source % size || target % size)
        return refuse(ncclInvalidArgument, "%s: a buffer is not at a multiple of the datatype's %d bytes", call, int(size));
    if (source != target && source < target + count * size && target < source + count * size)
        return refuse(ncclInvalidArgument, "%s: the buffers overlap and are not in place", call);
    Issue work{communicator, stream, {}, {}};
    work.collectives.push_back({uint32_t(datatype), uint32_t(op), count, source, target});
    return issue(std::move(work));
}

// Takes the communicator from its handle: nobody can call it any more. One that starts is waited for, or, if it is to be
// `aborted`, ended; null where it did not start.
ncclResult_t take(ncclComm_t handle, const char* call, bool aborted, std::shared_ptr<Communicator>* communicator) {
    std::unique_lock<std::mutex> hold(handles_lock);
    TRY(check_handle(handle, call));
    handle->ended = true;
    if (handle->progress && aborted) handle->progress->aborted = true;
    if (handle->progress && !handle->communicator) {
        hold.unlock();
        handle->progress->join();
        hold.lock();
    }
    communicator->swap(handle->communicator);
    return ncclSuccess;
}

// Does `work`, or begins it, where the communicator does not block.
ncclResult_t do_or_begin(const std::shared_ptr<Communicator>& communicator, std::function<ncclResult_t()> work) {
    if (!communicator->progress) return work();
    communicator->progress->begin(std::move(work));
    return ncclInProgress;
}

// What `start` makes of `communicator` becomes *newcomm: now, or where calls do not block later.
template <typename Start>
ncclResult_t make_child(ncclComm_t comm, const std::shared_ptr<Communicator>& communicator, ncclComm_t* newcomm,
                        Start start) {
    *newcomm = nullptr;
    ncclResult_t result = do_or_begin(communicator, [=]() -> ncclResult_t {
        std::shared_ptr<Communicator> child;
        TRY(start(&child));
        ncclComm_t made = make_handle(child, child->progress);
        std::lock_guard<std::mutex> hold(handles_lock);
        // As NCCL: whoever asks the parent finds that it is there.
        comm->child = made;
        comm->child_at = newcomm;
        return ncclSuccess;
    });
    std::lock_guard<std::mutex> hold(handles_lock);
    if (result == ncclSuccess) deliver_child(comm);
    return result;
}

ncclResult_t shrink(ncclComm_t comm, const int* absent, int num_absent, ncclComm_t* newcomm, bool ends_work) {
    const char* call = "ncclCommShrink";
    std::shared_ptr<Communicator> communicator;
    TRY(find(comm, call, &communicator));
    if (!newcomm || num_absent < 1 || !absent)
        return refuse(ncclInvalidArgument, "%s: no newcomm, or nobody to leave out", call);
    uint64_t left = communicator->world->all();
    for (int i = 0; i < num_absent; ++i) {
        if (absent[i] < 0 || absent[i] >= communicator->world->size())
            return refuse(ncclInvalidArgument, "%s: rank %d of %d", call, absent[i], communicator->world->size());
        left &= ~(uint64_t(1) << absent[i]);
    }
    if (!(left >> communicator->world->rank() & 1))
        return refuse(ncclInvalidArgument, "%s: called by rank %d, which it leaves out", call,
                      communicator->world->rank());
    if (ends_work) communicator->revoke();
    return make_child(comm, communicator, newcomm, [=](std::shared_ptr<Communicator>* smaller) {
        if (ends_work) communicator->settle_revoked();
        return start_smaller(smaller, *communicator, left, communicator->progress);
    });
}

ncclResult_t grow(ncclComm_t comm, int nranks, const ncclUniqueId* id, int rank, ncclComm_t* newcomm,
                  const ncclConfig_t* config) {
    const char* call = "ncclCommGrow";
    if (!newcomm) return refuse(ncclInvalidArgument, "%s: newcomm is null", call);
    if (!comm) {
        if (!id || rank < 1) return refuse(ncclInvalidArgument, "%s: who comes in needs the id, and a rank", call);
        return init_rank(newcomm, nranks, *id, rank, config);
    }
    std::shared_ptr<Communicator> communicator;
    TRY(find(comm, call, &communicator));
    if (rank != -1 || nranks <= communicator->world->size())
        return refuse(ncclInvalidArgument, "%s: rank %d, %d ranks of %d", call, rank, nranks,
                      communicator->world->size());
    if (communicator->revoked) return refuse(ncclInvalidUsage, "%s: the communicator was revoked", call);
    return make_child(comm, communicator, newcomm, [=, has_id = id != nullptr](std::shared_ptr<Communicator>* larger) {
        return start_larger(larger, *communicator, nranks, has_id, communicator->progress);
    });
}

}  // namespace

extern "C" {

ncclResult_t ncclGetVersion(int* told) {
    if (!told) return refuse(ncclInvalidArgument, "ncclGetVersion: version is null");
    *told = version();
    return ncclSuccess;
}

const char* ncclGetErrorString(ncclResult_t result) {
    switch (result) {
        case ncclSuccess: return "no error";
        case ncclUnhandledCudaError: return "unhandled cuda error (run with NCCL_DEBUG=INFO for details)";
        case ncclSystemError: return "unhandled system error (run with NCCL_DEBUG=INFO for details)";
        case ncclInternalError: return "internal error - please report this issue to the NCCL developers";
        case ncclInvalidArgument: return "invalid argument (run with NCCL_DEBUG=WARN for details)";
        case ncclInvalidUsage: return "invalid usage (run with NCCL_DEBUG=WARN for details)";
        case ncclRemoteError: return "remote process exited or there was a network error";
        case ncclInProgress: return "NCCL operation in progress";
        default: return "unknown result code";
    }
}

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
    if (!id) return refuse(ncclInvalidArgument, "ncclGetUniqueId: uniqueId is null");
    return World::make_id(id);
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int nranks, ncclUniqueId id, int rank, ncclConfig_t* config) {
    return note(init_rank(comm, nranks, id, rank, config));
}

ncclResult_t ncclCommInitRankScalable(ncclComm_t* comm, int nranks, int rank, int num_ids, ncclUniqueId* ids,
                                      ncclConfig_t* config) {
    if (num_ids < 1 || !ids) return refuse(ncclInvalidArgument, "ncclCommInitRankScalable: no unique id");
    return note(init_rank(comm, nranks, ids[0], rank, config));
}

ncclResult_t ncclCommFinalize(ncclComm_t comm) {
    std::shared_ptr<Communicator> communicator;
    TRY(find(comm, "ncclCommFinalize", &communicator));
    if (communicator->revoked) return refuse(ncclInvalidUsage, "ncclCommFinalize: the communicator was revoked");
    return do_or_begin(communicator, [=] {
        communicator->finalize();
        return ncclSuccess;
    });
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
    if (!comm) return ncclSuccess;
    std::shared_ptr<Communicator> communicator;
    TRY(take(comm, "ncclCommDestroy", false, &communicator));
    if (!communicator) return ncclSuccess;
    if (communicator->progress) communicator->progress->join();
    communicator->finalize();
    return ncclSuccess;
}

ncclResult_t ncclCommRevoke(ncclComm_t comm, int flags) {
    std::shared_ptr<Communicator> communicator;
    TRY(find(comm, "ncclCommRevoke", &communicator));
    if (flags) return refuse(ncclInvalidArgument, "ncclCommRevoke: flags %d, expected 0", flags);
    communicator->revoke();
    return do_or_begin(communicator, [=] {
        communicator->settle_revoked();
        return ncclSuccess;
    });
}

ncclResult_t ncclCommShrink(ncclComm_t comm, int* absent, int num_absent, ncclComm_t* newcomm, ncclConfig_t* config,
                            int flags) {
    TRY(check_config(config));
    return shrink(comm, absent, num_absent, newcomm, flags & kShrinkAborts);
}

ncclResult_t ncclCommGetUniqueId(ncclComm_t comm, ncclUniqueId* id) {
    std::shared_ptr<Communicator> communicator;
    TRY(find(comm, "ncclCommGetUniqueId", &communicator));
    if (!id) return refuse(ncclInvalidArgument, "ncclCommGetUniqueId: uniqueId is null");
    Seat& mine = communicator->world->mine();
    TRY(World::make_id(&mine.growth));
    *id = mine.growth;
    return ncclSuccess;
}

ncclResult_t ncclCommGrow(ncclComm_t comm, int nranks, const ncclUniqueId* id, int rank, ncclComm_t* newcomm,
                          ncclConfig_t* config) {
    TRY(check_config(config));
    return grow(comm, nranks, id, rank, newcomm, config);
}

ncclResult_t ncclCommAbort(ncclComm_t comm) {
    if (!comm) return ncclSuccess;
    std::shared_ptr<Communicator> communicator;
    TRY(take(comm, "ncclCommAbort", true, &communicator));
    if (communicator) communicator->abort();
    return ncclSuccess;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* error) {
    if (!error) return refuse(ncclInvalidArgument, "ncclCommGetAsyncError: asyncError is null");
    std::lock_guard<std::mutex> hold(handles_lock);
    TRY(check_handle(comm, "ncclCommGetAsyncError"));
    // As NCCL, where what is under way takes the place of what went wrong before: a revoke ends that.
    *error = comm->progress ? comm->progress->state() : ncclSuccess;
    const ncclResult_t found = ncclResult_t(comm->communicator ? comm->communicator->error.load() : ncclSuccess);
    if (*error != ncclInProgress && found != ncclSuccess) *error = found;
    deliver_child(comm);
    return ncclSuccess;
}

// Of the process: as documented, the communicator is of no account.
const char* ncclGetLastError(ncclComm_t) { return last_refusal(); }

ncclResult_t ncclGroupStart() {
    if (group.depth++ == 0) group.error = ncclSuccess;
    return ncclSuccess;
}

ncclResult_t ncclGroupEnd() {
    if (group.depth == 0) return refuse(ncclInvalidUsage, "ncclGroupEnd: not in a group call");
    if (--group.depth) return ncclSuccess;
    Group ended;
    std::swap(ended, group);
    TRY(ended.error);
    if (!ended.starts.empty() && !ended.issues.empty())
        return refuse(ncclInvalidUsage, "a group has both start-ups and work");
    TRY(start_all(ended.starts));
    return launch_all(std::move(ended.issues));
}

ncclResult_t ncclSend(const void* sendbuff, size_t count, ncclDataType_t datatype, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
    return note(message("ncclSend", true, sendbuff, count, datatype, peer, comm, stream));
}

ncclResult_t ncclRecv(void* recvbuff, size_t count, ncclDataType_t datatype, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
    return note(message("ncclRecv", false, recvbuff, count, datatype, peer, comm, stream));
}

ncclResult_t ncclAllReduce(const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype, ncclRedOp_t op,
                           ncclComm_t comm, cudaStream_t stream) {
    return note(all_reduce(sendbuff, recvbuff, count, datatype, op, comm, stream));
}

}  // extern "C"

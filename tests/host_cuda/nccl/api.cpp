// libnccl.so.2 on the host: the calls, their checks, and groups.
//
// Where NCCL would hang, as with counts that differ between ranks, the communicator has an error. HOST_NCCL_VERSION is
// the number it tells.

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "comm.h"
#include "device.h"
#include "launch.h"
#include "log.h"
#include "reduce.h"

using namespace host_nccl;

// What the user holds. It is never freed, so that a stale one is known as such.
struct ncclComm {
    std::shared_ptr<Communicator> communicator;
};

namespace {

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

ncclResult_t find(ncclComm_t handle, const char* call, std::shared_ptr<Communicator>* communicator) {
    std::lock_guard<std::mutex> hold(handles_lock);
    if (!handle || !handles().count(handle)) return refuse(ncclInvalidArgument, "%s: no communicator", call);
    *communicator = handle->communicator;
    if (!*communicator)
        return refuse(ncclInvalidArgument, "%s: the communicator was destroyed or aborted before", call);
    return ncclSuccess;
}

ncclComm_t make_handle(std::shared_ptr<Communicator> communicator) {
    std::lock_guard<std::mutex> hold(handles_lock);
    auto* handle = new ncclComm{std::move(communicator)};
    handles().insert(handle);
    return handle;
}

int version() {
    static const int told = int(number("HOST_NCCL_VERSION", 23007));
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

ncclResult_t start(ncclComm_t* handle, const ncclUniqueId& id, int rank, int world_size, int device) {
    OnDevice current(device);
    std::string identity;
    TRY(identify_device(device, &identity));
    bool shares = version() >= kSharingVersion && flag("NCCL_MULTI_RANK_GPU_ENABLE", false);
    std::unique_ptr<World> world;
    TRY(World::join(id, rank, world_size, version(), host_hash(), identity, shares, &world));
    *handle = make_handle(std::make_shared<Communicator>(std::move(world), device));
    return ncclSuccess;
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
    if (config->blocking == 0) return refuse(ncclInvalidArgument, "communicators that do not block are not supported");
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
    return start_or_group([=] { return start(comm, id, rank, nranks, device); });
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

// Takes the communicator from its handle: nobody can call it any more.
ncclResult_t take(ncclComm_t handle, const char* call, std::shared_ptr<Communicator>* communicator) {
    TRY(find(handle, call, communicator));
    std::lock_guard<std::mutex> hold(handles_lock);
    handle->communicator.reset();
    return ncclSuccess;
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

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
    if (!comm) return ncclSuccess;
    std::shared_ptr<Communicator> communicator;
    TRY(take(comm, "ncclCommDestroy", &communicator));
    communicator->destroy();
    return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t comm) {
    if (!comm) return ncclSuccess;
    std::shared_ptr<Communicator> communicator;
    TRY(take(comm, "ncclCommAbort", &communicator));
    communicator->abort();
    return ncclSuccess;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* error) {
    std::shared_ptr<Communicator> communicator;
    TRY(find(comm, "ncclCommGetAsyncError", &communicator));
    if (!error) return refuse(ncclInvalidArgument, "ncclCommGetAsyncError: asyncError is null");
    *error = ncclResult_t(communicator->error.load());
    return ncclSuccess;
}

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

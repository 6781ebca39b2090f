// What a call or a group puts on streams, after the connections that it needs.
#include "launch.h"

#include <algorithm>

#include "device.h"
#include "log.h"
#include "reduce.h"

namespace host_nccl {
namespace {

bool begins(std::atomic<uint8_t>& connection) { return connection.load() == 0; }

// Connections that the work needs and the communicator does not have yet: the flag of this rank and of the other one.
struct Connection {
    std::atomic<uint8_t>* mine;
    std::atomic<uint8_t>* theirs;
    int peer;
};

std::vector<Connection> find_connections(const Issue& issue) {
    World& world = *issue.communicator->world;
    std::vector<Connection> found;
    Seat& mine = world.mine();
    for (const Message& message : issue.messages) {
        if (message.peer == world.rank()) continue;
        Seat& theirs = world.seat(message.peer);
        Connection connection{&mine.receives_from[message.peer], &theirs.sends_to[world.rank()], message.peer};
        if (message.sends)
            connection = {&mine.sends_to[message.peer], &theirs.receives_from[world.rank()], message.peer};
        if (begins(*connection.mine)) found.push_back(connection);
    }
    for (const Collective& collective : issue.collectives) {
        // NCCL connects for an algorithm when it first takes it, and picks it by the size.
        uint64_t nbytes = collective.count * size_of(collective.datatype);
        int size = nbytes ? 63 - __builtin_clzll(nbytes) : 0;
        for (int rank = 0; rank < world.size(); ++rank) {
            auto flag_of = [&](Seat& seat) { return &seat.collectives[size]; };
            if (rank != world.rank() && begins(*flag_of(mine)))
                found.push_back({flag_of(mine), flag_of(world.seat(rank)), rank});
        }
    }
    return found;
}

// Returns once the others have come to make these connections as well.
ncclResult_t connect(const Issue& issue, const std::vector<Connection>& connections) {
    Communicator& communicator = *issue.communicator;
    World& world = *communicator.world;
    auto needed = [&] {
        uint64_t ranks = 0;
        for (const Connection& connection : connections)
            if (begins(*connection.theirs)) ranks |= uint64_t(1) << connection.peer;
        return ranks;
    };
    int lost = -1;
    switch (world.wait([&] { return needed() == 0; }, needed, &communicator.aborted, &lost)) {
        case Waited::kReady: return ncclSuccess;
        case Waited::kAborted: return refuse(ncclInternalError, "rank %d: aborted while it connected", world.rank());
        case Waited::kLost: break;
    }
    std::string how;
    world.find_lost(uint64_t(1) << lost, true, &how);
    ncclResult_t error = refuse(ncclRemoteError, "rank %d connects: %s", world.rank(), how.c_str());
    communicator.set_error(error);
    return error;
}

ncclResult_t check_self_messages(const Issue& issue) {
    int rank = issue.communicator->world->rank();
    std::vector<uint64_t> sent, received;
    for (const Message& message : issue.messages)
        if (message.peer == rank) (message.sends ? sent : received).push_back(message.nbytes);
    if (sent != received)
        return refuse(ncclInvalidUsage, "rank %d: messages to itself without their like in the same group", rank);
    return ncclSuccess;
}

// All that the group has for one communicator, with all streams it gave.
struct Launch {
    Issue all;
    std::vector<cudaStream_t> streams;
    unsigned long long capture = 0;
    cudaGraph_t graph = nullptr;
};

// Two threads that call one communicator at once are undefined: refused.
class Calling {
public:
    explicit Calling(Communicator& communicator)
        : communicator_(communicator), is_first_(!communicator.called.exchange(true)) {}
    ~Calling() {
        if (is_first_) communicator_.called = false;
    }
    Calling(const Calling&) = delete;
    bool is_first() const { return is_first_; }

private:
    Communicator& communicator_;
    bool is_first_;
};

ncclResult_t check_launch(Launch* launch) {
    Communicator& communicator = *launch->all.communicator;
    OnDevice current(communicator.device);
    int rank = communicator.world->rank();
    if (communicator.revoked) return refuse(ncclInvalidUsage, "rank %d: a call on a revoked communicator", rank);
    if (communicator.progress && communicator.progress->state() == ncclInProgress)
        return refuse(ncclInvalidUsage, "rank %d: a call while the communicator is in progress", rank);
    if (int error = communicator.error)
        return refuse(ncclResult_t(error), "rank %d: a call after the communicator's error", rank);
    TRY(check_self_messages(launch->all));
    for (size_t i = 0; i < launch->streams.size(); ++i) {
        unsigned long long capture = 0;
        cudaGraph_t graph = nullptr;
        TRY(find_capture(launch->streams[i], &capture, &graph));
        if (i && capture != launch->capture)
            return refuse(ncclInvalidUsage, "a group has streams of different captures, or some that are not captured");
        launch->capture = capture;
        launch->graph = graph;
    }
    return ncclSuccess;
}

void run_queued(void* data) {
    std::unique_ptr<Work> work(static_cast<Work*>(data));
    run(*work);
}

void run_captured(void* data) { run(*static_cast<Work*>(data)); }

void free_captured(void* data) {
    std::unique_ptr<Work> work(static_cast<Work*>(data));
    work->communicator->hold(-1);
}

ncclResult_t queue(const Launch& launch) {
    const auto& communicator = launch.all.communicator;
    OnDevice current(communicator->device);
    auto work = std::make_unique<Work>();
    work->communicator = communicator;
    work->collectives = launch.all.collectives;
    work->messages = launch.all.messages;
    work->captured = launch.capture != 0;
    cudaStream_t stream = launch.streams.front();
    for (cudaStream_t other : launch.streams)
        if (other != stream) TRY(order_streams(other, stream));
    if (work->captured) {
        TRY(check_cuda(cudaLaunchHostFunc(stream, run_captured, work.get()), "the capture of NCCL's work"));
        communicator->hold(1);
        TRY(keep_for_graph(launch.graph, work.release(), free_captured));
    } else {
        work->turn = communicator->queue();
        cudaError_t error = cudaLaunchHostFunc(stream, run_queued, work.get());
        if (error != cudaSuccess) communicator->forget(work->turn);
        TRY(check_cuda(error, "the launch of NCCL's work"));
        work.release();
    }
    for (cudaStream_t other : launch.streams)
        if (other != stream) TRY(order_streams(stream, other));
    return ncclSuccess;
}

}  // namespace

ncclResult_t launch_all(std::vector<Issue> issues) {
    std::vector<Launch> launches;
    for (Issue& issue : issues) {
        auto same = [&](const Launch& launch) { return launch.all.communicator == issue.communicator; };
        auto found = std::find_if(launches.begin(), launches.end(), same);
        if (found == launches.end()) {
            launches.push_back({{issue.communicator, issue.stream, {}, {}}, {}});
            found = launches.end() - 1;
        }
        auto& streams = found->streams;
        if (std::find(streams.begin(), streams.end(), issue.stream) == streams.end()) streams.push_back(issue.stream);
        for (auto& collective : issue.collectives) found->all.collectives.push_back(collective);
        for (auto& message : issue.messages) found->all.messages.push_back(message);
    }
    std::vector<std::shared_ptr<Calling>> calling;
    for (Launch& launch : launches) {
        calling.push_back(std::make_shared<Calling>(*launch.all.communicator));
        if (!calling.back()->is_first())
            return refuse(ncclInvalidUsage, "two threads call a communicator of rank %d at once",
                          launch.all.communicator->world->rank());
        TRY(check_launch(&launch));
    }
    std::vector<std::vector<Connection>> connections;
    for (Launch& launch : launches) {
        connections.push_back(find_connections(launch.all));
        if (!connections.back().empty() && launch.capture)
            return refuse(ncclInvalidUsage,
                          "rank %d: the first work with rank %d within a capture: NCCL would wait for that rank in it",
                          launch.all.communicator->world->rank(), connections.back().front().peer);
        for (const Connection& connection : connections.back()) *connection.mine = 1;
        if (!connections.back().empty()) launch.all.communicator->world->ring_all();
    }
    auto finish = [launches, connections, calling]() -> ncclResult_t {
        for (size_t i = 0; i < launches.size(); ++i) TRY(connect(launches[i].all, connections[i]));
        for (const Launch& launch : launches) TRY(queue(launch));
        return ncclSuccess;
    };
    auto waits = [](const auto& found) { return !found.empty(); };
    if (launches.empty() || std::none_of(connections.begin(), connections.end(), waits)) return finish();
    auto blocks = [](const Launch& launch) { return !launch.all.communicator->progress; };
    if (std::all_of(launches.begin(), launches.end(), blocks)) return finish();
    if (launches.size() > 1)
        return refuse(ncclInvalidUsage, "a group that connects communicators which do not block is not supported");
    launches.front().all.communicator->progress->begin(finish);
    return ncclInProgress;
}

}  // namespace host_nccl

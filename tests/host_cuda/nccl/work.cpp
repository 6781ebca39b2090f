// What NCCL's kernels do: messages between pairs, and all-reduces, by reading each other's memory.

#include <errno.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>

#include "comm.h"
#include "log.h"
#include "reduce.h"

namespace host_nccl {
namespace {

using Bytes = std::unique_ptr<char, decltype(&free)>;

Bytes allocate(uint64_t nbytes) { return Bytes(static_cast<char*>(malloc(nbytes ? nbytes : 1)), free); }

constexpr uint64_t kBlockNbytes = 1 << 20;

class Worker {
public:
    explicit Worker(const Work& work)
        : work_(work), communicator_(*work.communicator), world_(*communicator_.world), rank_(world_.rank()) {}

    void run() {
        for (const Collective& collective : work_.collectives)
            if (!run_collective(collective)) return stay();
        if (!run_messages()) stay();
    }

private:
    // -- messages

    // The messages of one direction with one peer, in order; the first is under way.
    using Queues = std::map<int, std::deque<Message>>;

    bool run_messages() {
        Queues sends, receives;
        for (const Message& message : work_.messages)
            (message.sends ? sends : receives)[message.peer].push_back(message);
        bool failed = false;
        auto step = [&] {
            bool moves = true;
            while (moves && !failed) {
                moves = false;
                for (auto& [peer, queue] : sends) moves |= step_send(peer, queue, &failed);
                for (auto& [peer, queue] : receives) moves |= step_receive(peer, queue, &failed);
            }
            auto is_empty = [](const auto& entry) { return entry.second.empty(); };
            return failed || (std::all_of(sends.begin(), sends.end(), is_empty) &&
                              std::all_of(receives.begin(), receives.end(), is_empty));
        };
        auto needed = [&] {
            uint64_t ranks = 0;
            for (const Queues* queues : {&sends, &receives})
                for (auto& [peer, queue] : *queues)
                    if (!queue.empty()) ranks |= uint64_t(1) << peer;
            return ranks;
        };
        return wait(step, needed) && !failed;
    }

    bool step_send(int peer, std::deque<Message>& queue, bool* failed) {
        Box& box = world_.box(rank_, peer);
        bool moves = false;
        while (!queue.empty()) {
            BoxState state = box.state;
            if (state == BoxState::kPosted) break;
            if (state == BoxState::kRefused) {
                fail(ncclInvalidUsage, "it sent %llu bytes to rank %d, which expected %llu",
                     static_cast<unsigned long long>(box.nbytes), peer,
                     static_cast<unsigned long long>(box.expected_nbytes));
                *failed = true;
                break;
            }
            moves = true;
            if (state == BoxState::kTaken) {
                queue.pop_front();
                box.state = BoxState::kEmpty;
                continue;
            }
            const Message message = queue.front();
            box.address = message.address;
            box.nbytes = message.nbytes;
            box.state = BoxState::kPosted;
            world_.ring(peer);
        }
        return moves;
    }

    bool step_receive(int peer, std::deque<Message>& queue, bool* failed) {
        Box& box = world_.box(peer, rank_);
        if (queue.empty() || box.state != BoxState::kPosted || world_.seat(peer).presence == Presence::kAborted)
            return false;
        const Message& message = queue.front();
        if (box.nbytes != message.nbytes) {
            fail(ncclInvalidUsage, "rank %d sent %llu bytes, and it expected %llu", peer,
                 static_cast<unsigned long long>(box.nbytes), static_cast<unsigned long long>(message.nbytes));
            *failed = true;
            box.expected_nbytes = message.nbytes;
            box.state = BoxState::kRefused;
            world_.ring(peer);
            return false;
        }
        if (!read(peer, reinterpret_cast<void*>(message.address), box.address, message.nbytes)) {
            *failed = true;
            return false;
        }
        queue.pop_front();
        box.state = BoxState::kTaken;
        world_.ring(peer);
        return true;
    }

    // -- collectives: all say what they have; each reduces its share; all take the shares; nobody goes on before

    bool run_collective(const Collective& collective) {
        world_.mine().call = {collective.datatype, collective.op, collective.count, collective.source, 0};
        if (!meet()) return false;
        for (int rank = 0; rank < world_.size(); ++rank)
            if (!same_call(collective, rank)) return false;
        return all_reduce(collective);
    }

    bool same_call(const Collective& mine, int rank) {
        const Call& other = world_.seat(rank).call;
        if (other.count == mine.count && other.datatype == mine.datatype && other.op == mine.op) return true;
        fail(ncclInvalidUsage, "it reduces %llu elements (datatype %u, op %u), rank %d %llu (datatype %u, op %u)",
             static_cast<unsigned long long>(mine.count), mine.datatype, mine.op, rank,
             static_cast<unsigned long long>(other.count), other.datatype, other.op);
        return false;
    }

    bool all_reduce(const Collective& collective) {
        uint64_t size = size_of(collective.datatype), n = world_.size();
        auto begin = [&](int rank) { return collective.count * rank / n; };
        Bytes share = allocate((begin(rank_ + 1) - begin(rank_)) * size);
        if (!reduce_share(collective, begin(rank_), begin(rank_ + 1), share.get())) return false;
        world_.mine().call.scratch = reinterpret_cast<uint64_t>(share.get());
        if (!meet()) return false;
        auto* target = reinterpret_cast<char*>(collective.target);
        for (int rank = 0; rank < world_.size(); ++rank)
            if (!read(rank, target + begin(rank) * size, world_.seat(rank).call.scratch,
                      (begin(rank + 1) - begin(rank)) * size))
                return false;
        return meet();
    }

    bool reduce_share(const Collective& collective, uint64_t begin, uint64_t end, char* total) {
        uint64_t size = size_of(collective.datatype);
        Bytes block = allocate(kBlockNbytes);
        for (uint64_t at = begin; at < end; at += kBlockNbytes / size) {
            uint64_t count = std::min(end - at, kBlockNbytes / size);
            char* part = total + (at - begin) * size;
            for (int rank = 0; rank < world_.size(); ++rank) {
                char* into = rank ? block.get() : part;
                if (!read(rank, into, world_.seat(rank).call.source + at * size, count * size)) return false;
                if (collective.op == ncclAvg) scale_for_average(into, count, collective.datatype, world_.size());
                if (rank) reduce_into(part, into, count, collective.datatype, collective.op);
            }
            if (collective.op == ncclAvg) divide_for_average(part, count, collective.datatype, world_.size());
        }
        return true;
    }

    // -- both

    bool meet() {
        int lost = -1;
        Waited waited = world_.meet(&Seat::device_phase, &communicator_.aborted, &lost);
        return went_well(waited, lost);
    }

    bool wait(const std::function<bool()>& ready, const std::function<uint64_t()>& needed) {
        int lost = -1;
        Waited waited = world_.wait(ready, needed, &communicator_.aborted, &lost);
        return went_well(waited, lost);
    }

    bool went_well(Waited waited, int lost) {
        if (waited == Waited::kLost) {
            std::string how;
            world_.find_lost(uint64_t(1) << lost, true, &how);
            fail(ncclRemoteError, "%s", how.c_str());
        }
        return waited == Waited::kReady;
    }

    bool read(int rank, void* target, uint64_t source, uint64_t nbytes) {
        if (read_memory(world_.seat(rank).pid, target, source, nbytes)) return true;
        if (errno == ESRCH)
            fail(ncclRemoteError, "rank %d has ended", rank);
        else if (errno == EFAULT)
            fail(ncclUnhandledCudaError,
                 "no memory at %#llx of rank %d or at %p of its own, %llu bytes: freed too early?",
                 static_cast<unsigned long long>(source), rank, target, static_cast<unsigned long long>(nbytes));
        else
            fail(ncclSystemError, "rank %d's memory cannot be read: %s", rank, strerror(errno));
        return false;
    }

    template <class... Arguments>
    void fail(ncclResult_t error, const char* format, Arguments... arguments) {
        char text[512];
        snprintf(text, sizeof(text), format, arguments...);
        communicator_.set_error(refuse(error, "rank %d: %s", rank_, text));
    }

    void stay() {
        int lost = -1;
        world_.wait([] { return false; }, [] { return uint64_t(0); }, &communicator_.aborted, &lost);
    }

    const Work& work_;
    Communicator& communicator_;
    World& world_;
    const int rank_;
};

}  // namespace

void run(const Work& work) {
    Communicator& communicator = *work.communicator;
    communicator.begin(work.captured, work.turn);
    if (!communicator.aborted) Worker(work).run();
    communicator.end(work.captured);
}

}  // namespace host_nccl

// A rank's communicator, and work for it on a stream.

#pragma once

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "progress.h"
#include "world.h"

namespace host_nccl {

struct Message {
    bool sends;
    uint64_t address, nbytes;
    int peer;
};

struct Collective {
    uint32_t datatype, op;
    uint64_t count, source, target;
};

class Communicator {
public:
    Communicator(std::unique_ptr<World> world, int device, std::shared_ptr<Progress> progress)
        : world(std::move(world)), device(device), progress(std::move(progress)) {}

    // -- its work, one after the other

    // The turn of work that is queued now.
    uint64_t queue();
    // Waits for the turn of queued work; or, captured work, which has none, until nothing else runs.
    void begin(bool captured, uint64_t turn);
    void end(bool captured);
    // Queued work that will never run.
    void forget(uint64_t turn);
    // Graphs that hold work of it.
    void hold(int change);

    // -- its end

    void set_error(ncclResult_t first);
    // Waits for the queued work, and, unless told not to, as NCCL does until no graph holds the communicator.
    void settle(const char* what, bool waits_for_graphs = true);
    void abort();
    // Ends what is under way and lets the streams go on, at once; settle_revoked returns once that is done. What can be
    // called then is its end, and its smaller successor: how often that was asked for, `shrinks` counts.
    void revoke();
    void settle_revoked();
    // What an orderly end waits for; once.
    void finalize();

    const std::unique_ptr<World> world;
    const int device;
    // Null: it blocks.
    const std::shared_ptr<Progress> progress;
    std::atomic<bool> revoked{false};
    std::atomic<uint32_t> shrinks{0};
    // How often a larger one was asked for.
    std::atomic<uint32_t> grows{0};
    std::atomic<bool> aborted{false};
    std::atomic<int> error{ncclSuccess};
    // Whether a call on it is under way: calls of two threads at once are undefined.
    std::atomic<bool> called{false};

private:
    std::mutex lock_;
    std::condition_variable changed_;
    uint64_t queued_ = 0, turn_ = 0;
    std::set<uint64_t> forgotten_;
    bool runs_ = false, finalized_ = false;
    int num_held_ = 0;
};

// All that a group has for a communicator.
struct Work {
    std::shared_ptr<Communicator> communicator;
    std::vector<Collective> collectives;
    std::vector<Message> messages;
    bool captured = false;
    uint64_t turn = 0;
};

// Does the work, on the stream's thread; on an error it stays, as NCCL's kernel does, until the communicator is
// aborted.
void run(const Work& work);

}  // namespace host_nccl

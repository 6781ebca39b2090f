// A communicator's queue of work, and its end.
#include "comm.h"

#include <chrono>
#include <cstdio>
#include <utility>

#include "device.h"
#include "log.h"

namespace host_nccl {

uint64_t Communicator::queue() {
    std::lock_guard<std::mutex> hold(lock_);
    return queued_++;
}

void Communicator::begin(bool captured, uint64_t turn) {
    std::unique_lock<std::mutex> hold(lock_);
    changed_.wait(hold, [&] { return !runs_ && (captured || turn_ == turn); });
    runs_ = true;
}

void Communicator::end(bool captured) {
    std::lock_guard<std::mutex> hold(lock_);
    runs_ = false;
    if (!captured) ++turn_;
    while (forgotten_.erase(turn_)) ++turn_;
    changed_.notify_all();
}

void Communicator::forget(uint64_t turn) {
    std::lock_guard<std::mutex> hold(lock_);
    forgotten_.insert(turn);
    while (!runs_ && forgotten_.erase(turn_)) ++turn_;
    changed_.notify_all();
}

void Communicator::hold(int change) {
    std::lock_guard<std::mutex> hold(lock_);
    num_held_ += change;
    changed_.notify_all();
}

void Communicator::set_error(ncclResult_t first) {
    int none = ncclSuccess;
    error.compare_exchange_strong(none, first);
}

void Communicator::settle(const char* what, bool waits_for_graphs) {
    auto is_settled = [&] { return !runs_ && turn_ == queued_ && (num_held_ == 0 || !waits_for_graphs); };
    std::unique_lock<std::mutex> hold(lock_);
    for (int look = 1; !changed_.wait_for(hold, std::chrono::milliseconds(100), is_settled); ++look) {
        if (look == 10)
            fprintf(stderr,
                    "host_nccl: %s of rank %d waits: %llu queued groups, %d captured ones in graphs that are there\n",
                    what, world->rank(), static_cast<unsigned long long>(queued_ - turn_), num_held_);
        hold.unlock();
        bool is_lost = has_failed(device);
        hold.lock();
        if (!is_lost) continue;
        // What is queued there never runs.
        aborted = true;
        world->ring(world->rank());
        changed_.wait(hold, [&] { return !runs_; });
        return;
    }
}

void Communicator::abort() {
    aborted = true;
    world->leave(Presence::kAborted);
    if (progress) progress->join();
    settle("ncclCommAbort");
}

void Communicator::revoke() {
    revoked = aborted = true;
    world->ring(world->rank());
}

void Communicator::settle_revoked() {
    settle("ncclCommRevoke", false);
    error = ncclSuccess;
}

void Communicator::finalize() {
    if (std::exchange(finalized_, true)) return;
    settle("ncclCommDestroy");
    world->leave(Presence::kDestroyed);
    // Its documentation: an intra-node collective call, which all ranks on the same node should call to avoid a hang.
    uint64_t gone = 0;
    auto late = [&] {
        uint64_t ranks = 0;
        for (int rank = 0; rank < world->size(); ++rank)
            if (world->seat(rank).host == world->mine().host && world->seat(rank).presence == Presence::kPresent)
                ranks |= uint64_t(1) << rank;
        return ranks & ~gone;
    };
    int lost = -1;
    while (world->wait([&] { return late() == 0; }, late, &aborted, &lost) == Waited::kLost) gone |= uint64_t(1) << lost;
}

}  // namespace host_nccl

// Work beside the caller, one after the other.
#include "progress.h"

#include <memory>

namespace host_nccl {

void Progress::begin(std::function<ncclResult_t()> work) {
    std::lock_guard<std::mutex> hold(lock_);
    state_ = ncclInProgress;
    auto earlier = std::make_shared<std::thread>(std::move(thread_));
    thread_ = std::thread([this, earlier, work = std::move(work), turn = ++turn_]() mutable {
        if (earlier->joinable()) earlier->join();
        ncclResult_t result = work();
        // What it holds goes before anybody is told that it is over.
        work = nullptr;
        std::lock_guard<std::mutex> hold(lock_);
        if (turn == turn_) state_ = result;
    });
}

ncclResult_t Progress::state() {
    std::lock_guard<std::mutex> hold(lock_);
    return state_;
}

void Progress::join() {
    std::thread last;
    {
        std::lock_guard<std::mutex> hold(lock_);
        std::swap(last, thread_);
    }
    if (last.joinable()) last.join();
}

}  // namespace host_nccl

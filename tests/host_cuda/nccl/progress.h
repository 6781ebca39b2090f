// What a communicator that does not block has under way.

#pragma once

#include <atomic>
#include <functional>
#include <mutex>
#include <thread>

#include "nccl_api.h"

namespace host_nccl {

class Progress {
public:
    // Does `work` beside the caller, after what is under way; until it has returned the state is ncclInProgress, then
    // what it returned.
    void begin(std::function<ncclResult_t()> work);
    ncclResult_t state();
    // Returns once nothing is under way.
    void join();

    // Ends a start-up, which has no communicator yet.
    std::atomic<bool> aborted{false};

private:
    std::mutex lock_;
    std::thread thread_;
    uint64_t turn_ = 0;
    ncclResult_t state_ = ncclSuccess;
};

}  // namespace host_nccl

// Something that will be done: one piece of queued work.
#pragma once

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>

namespace hostcuda {

class Completion {
public:
    using Clock = std::chrono::steady_clock;

    void finish() {
        std::lock_guard<std::mutex> guard(mutex_);
        is_done_ = true;
        finished_at_ = Clock::now();
        changed_.notify_all();
    }

    bool is_done() const {
        std::lock_guard<std::mutex> guard(mutex_);
        return is_done_;
    }

    void wait() {
        std::unique_lock<std::mutex> guard(mutex_);
        changed_.wait(guard, [&] { return is_done_; });
    }

    // Only once done.
    Clock::time_point finished_at() const {
        std::lock_guard<std::mutex> guard(mutex_);
        return finished_at_;
    }

private:
    mutable std::mutex mutex_;
    std::condition_variable changed_;
    bool is_done_ = false;
    Clock::time_point finished_at_;
};

using CompletionPtr = std::shared_ptr<Completion>;

}  // namespace hostcuda

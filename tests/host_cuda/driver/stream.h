// Streams: queues of work, each run in order by a thread of its own, and the order among the streams of a device.
#pragma once

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include "action.h"
#include "completion.h"
#include "device.h"
#include "registry.h"

namespace hostcuda {

struct Capture;
struct Node;

struct Work {
    Action action;
    std::vector<CompletionPtr> after;
    CompletionPtr done;
};

struct Stream : std::enable_shared_from_this<Stream> {
    Stream(Device& device, unsigned flags, int priority, bool is_legacy)
        : device(device), flags(flags), priority(priority), is_legacy(is_legacy), id(++num_made) {}

    Device& device;
    const unsigned flags;
    const int priority;
    const bool is_legacy;
    const unsigned long long id;
    std::uintptr_t handle = 0;

    // Under state_mutex().
    CompletionPtr tail;  // of the last work queued; null before the first
    std::shared_ptr<Capture> capture;
    bool is_destroyed = false;
    std::vector<Node*> front;  // of the capture: what the next node comes after

    // Waits for the legacy stream and is waited for by it.
    bool is_blocking() const { return !is_legacy && !(flags & cudaStreamNonBlocking); }
    cudaStream_t public_handle() const { return reinterpret_cast<cudaStream_t>(handle); }

    // Under state_mutex(). Adds what the stream must wait for by the rules of the legacy stream.
    CompletionPtr enqueue(Action action, std::vector<CompletionPtr> after = {});
    // All that waiting for this stream waits for.
    std::vector<CompletionPtr> tails() const;
    // The worker ends once the queue is empty.
    void close();

private:
    void work();

    static std::atomic<unsigned long long> num_made;
    std::mutex mutex_;
    std::condition_variable changed_;
    std::deque<Work> queue_;
    bool has_worker_ = false;
    bool is_closed_ = false;
};

using StreamPtr = std::shared_ptr<Stream>;

Status create_stream(cudaStream_t& handle, Device& device, unsigned flags, int priority);
Status destroy_stream(cudaStream_t handle);
// Any handle: also the legacy stream, which is the current device's. A thread's own default stream is not here.
Status find_stream(StreamPtr& stream, cudaStream_t handle);

// Queues the action, or makes it a node where the stream is captured; `done` is null in the latter case.
Status submit(Stream& stream, Action action, CompletionPtr* done = nullptr);
// ... and waits for it; not permitted on a captured stream.
Status submit_and_wait(Stream& stream, Action action);

Status synchronize_stream(Stream& stream);
Status query_stream(Stream& stream);
Status synchronize_device(Device& device);
// What freeing memory waits for: pinned memory is every device's.
Status synchronize_for_free(Device& device, bool is_host);

}  // namespace hostcuda

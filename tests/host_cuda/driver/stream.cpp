// Streams: their queues and workers, and what waiting for them means.
#include "stream.h"

#include "capture.h"
#include "worker.h"

namespace hostcuda {
namespace {

Registry<Stream>& streams() {
    static Registry<Stream>& all = *new Registry<Stream>(1);
    return all;
}

void wait_for_all(const std::vector<CompletionPtr>& completions) {
    for (const CompletionPtr& completion : completions) completion->wait();
}

// Under the lock.
std::vector<CompletionPtr> all_tails(const Device& device) {
    std::vector<CompletionPtr> tails;
    for (const StreamPtr& stream : device.streams)
        if (stream->tail) tails.push_back(stream->tail);
    return tails;
}

// Under the lock. A destroyed stream still counts, for the legacy stream and the whole device, until its work is done.
void forget_drained(Device& device) {
    for (auto next = device.streams.begin(); next != device.streams.end();) {
        const Stream& stream = **next;
        bool goes = stream.is_destroyed && (!stream.tail || stream.tail->is_done());
        next = goes ? device.streams.erase(next) : std::next(next);
    }
}

StreamPtr legacy_stream(Device& device) {
    std::lock_guard<std::mutex> lock(state_mutex());
    if (!device.legacy_stream) {
        device.legacy_stream = std::make_shared<Stream>(device, cudaStreamDefault, 0, true);
        device.streams.insert(device.legacy_stream);
    }
    return device.legacy_stream;
}

}  // namespace

std::atomic<unsigned long long> Stream::num_made{0};

CompletionPtr Stream::enqueue(Action action, std::vector<CompletionPtr> after) {
    if (is_legacy) {
        for (const StreamPtr& other : device.streams)
            if (other->is_blocking() && other->tail) after.push_back(other->tail);
    } else if (is_blocking() && device.legacy_stream && device.legacy_stream->tail) {
        after.push_back(device.legacy_stream->tail);
    }
    tail = std::make_shared<Completion>();
    CompletionPtr done = tail;
    bool needs_worker;
    {
        std::lock_guard<std::mutex> lock(mutex_);
        queue_.push_back(Work{std::move(action), std::move(after), done});
        needs_worker = !has_worker_;
        has_worker_ = true;
        changed_.notify_one();
    }
    if (needs_worker) {
        StreamPtr self = shared_from_this();
        start_thread("hostcuda-s" + std::to_string(id), [self] { self->work(); });
    }
    return done;
}

std::vector<CompletionPtr> Stream::tails() const {
    std::vector<CompletionPtr> all;
    if (tail) all.push_back(tail);
    if (is_legacy)
        for (const StreamPtr& other : device.streams)
            if (other->is_blocking() && other->tail) all.push_back(other->tail);
    return all;
}

void Stream::close() {
    std::lock_guard<std::mutex> lock(mutex_);
    is_closed_ = true;
    changed_.notify_one();
}

void Stream::work() {
    std::unique_lock<std::mutex> lock(mutex_);
    while (true) {
        changed_.wait(lock, [&] { return is_closed_ || !queue_.empty(); });
        if (queue_.empty()) {
            has_worker_ = false;
            return;
        }
        Work next = std::move(queue_.front());
        queue_.pop_front();
        lock.unlock();
        wait_for_all(next.after);
        perform(next.action, device);
        // What the action holds goes before anyone learns that it is done.
        next.action = Action{};
        next.done->finish();
        next = Work{};
        lock.lock();
    }
}

Status create_stream(cudaStream_t& handle, Device& device, unsigned flags, int priority) {
    if (flags & ~cudaStreamNonBlocking) return cudaErrorInvalidValue;
    auto stream = std::make_shared<Stream>(device, flags, priority, false);
    stream->handle = streams().add(stream);
    {
        std::lock_guard<std::mutex> lock(state_mutex());
        forget_drained(device);
        device.streams.insert(stream);
    }
    handle = stream->public_handle();
    return kSuccess;
}

Status destroy_stream(cudaStream_t handle) {
    StreamPtr stream = streams().find(handle);
    if (!stream) return cudaErrorInvalidResourceHandle;
    {
        std::lock_guard<std::mutex> lock(state_mutex());
        if (stream->capture) {
            complain("a stream was destroyed while it was captured");
            stream->capture->invalidate();
            return cudaErrorStreamCaptureUnsupported;
        }
    }
    if (!streams().remove(handle)) return cudaErrorInvalidResourceHandle;
    std::lock_guard<std::mutex> lock(state_mutex());
    stream->is_destroyed = true;
    stream->close();
    forget_drained(stream->device);
    return kSuccess;
}

Status find_stream(StreamPtr& stream, cudaStream_t handle) {
    if (handle == nullptr || handle == cudaStreamLegacy) {
        Device* device = current_device();
        if (!device) return cudaErrorNoDevice;
        stream = legacy_stream(*device);
        return kSuccess;
    }
    stream = streams().find(handle);
    return stream ? kSuccess : static_cast<Status>(cudaErrorInvalidResourceHandle);
}

Status submit(Stream& stream, Action action, CompletionPtr* done) {
    std::lock_guard<std::mutex> lock(state_mutex());
    if (Status failure = stream.device.failure) return failure;
    if (stream.capture) return add_captured(stream, std::move(action));
    HOSTCUDA_TRY(check_legacy_use(stream));
    CompletionPtr completion = stream.enqueue(std::move(action));
    if (done) *done = completion;
    return kSuccess;
}

Status submit_and_wait(Stream& stream, Action action) {
    {
        std::lock_guard<std::mutex> lock(state_mutex());
        HOSTCUDA_TRY(check_not_captured(stream));
    }
    CompletionPtr done;
    HOSTCUDA_TRY(submit(stream, std::move(action), &done));
    if (done) done->wait();
    return stream.device.failure;
}

Status synchronize_stream(Stream& stream) {
    std::vector<CompletionPtr> tails;
    {
        std::lock_guard<std::mutex> lock(state_mutex());
        HOSTCUDA_TRY(check_not_captured(stream));
        HOSTCUDA_TRY(check_legacy_use(stream));
        HOSTCUDA_TRY(check_unsafe_call());
        tails = stream.tails();
    }
    wait_for_all(tails);
    return stream.device.failure;
}

Status query_stream(Stream& stream) {
    std::lock_guard<std::mutex> lock(state_mutex());
    HOSTCUDA_TRY(check_not_captured(stream));
    HOSTCUDA_TRY(check_legacy_use(stream));
    HOSTCUDA_TRY(check_unsafe_call());
    if (Status failure = stream.device.failure) return failure;
    for (const CompletionPtr& tail : stream.tails())
        if (!tail->is_done()) return cudaErrorNotReady;
    return stream.device.failure;
}

Status synchronize_device(Device& device) {
    std::vector<CompletionPtr> tails;
    {
        std::lock_guard<std::mutex> lock(state_mutex());
        HOSTCUDA_TRY(check_device_not_captured(device));
        HOSTCUDA_TRY(check_unsafe_call());
        tails = all_tails(device);
    }
    wait_for_all(tails);
    return device.failure;
}

Status synchronize_for_free(Device& device, bool is_host) {
    std::vector<CompletionPtr> tails;
    {
        std::lock_guard<std::mutex> lock(state_mutex());
        for (Device* each : devices()) {
            if (!is_host && each != &device) continue;
            std::vector<CompletionPtr> more = all_tails(*each);
            tails.insert(tails.end(), more.begin(), more.end());
        }
    }
    wait_for_all(tails);
    return device.failure;
}

}  // namespace hostcuda

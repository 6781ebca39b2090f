// Events: records, waits and times, within captures and outside.
#include "event.h"

#include "capture.h"

namespace hostcuda {
namespace {

Registry<Event>& events() {
    static Registry<Event>& all = *new Registry<Event>(2);
    return all;
}

// Under the lock. The completion to look at from the host, null if there is nothing to wait for.
Status host_view(CompletionPtr& last, Event& event) {
    if (event.capture) {
        event.capture->invalidate();
        return cudaErrorCapturedEvent;
    }
    HOSTCUDA_TRY(check_unsafe_call());
    last = event.last;
    return kSuccess;
}

// Under the lock.
Status wait_for_captured(Event& event, Stream& stream) {
    Capture& capture = *event.capture;
    if (capture.is_over) {
        if (stream.capture) stream.capture->invalidate();
        return cudaErrorCapturedEvent;
    }
    if (!capture.is_valid) return cudaErrorStreamCaptureInvalidated;
    if (stream.is_legacy) {
        capture.invalidate();
        return cudaErrorStreamCaptureImplicit;
    }
    if (stream.capture && stream.capture != event.capture) {
        capture.invalidate();
        stream.capture->invalidate();
        return cudaErrorStreamCaptureMerge;
    }
    capture.join(stream, event.front);
    return kSuccess;
}

}  // namespace

Status create_event(cudaEvent_t& handle, Device& device, unsigned flags) {
    constexpr unsigned kKnown = cudaEventBlockingSync | cudaEventDisableTiming | cudaEventInterprocess;
    if (flags & ~kKnown) return cudaErrorInvalidValue;
    if (flags & cudaEventInterprocess) return cudaErrorNotSupported;
    handle = reinterpret_cast<cudaEvent_t>(events().add(std::make_shared<Event>(device, flags)));
    return kSuccess;
}

Status destroy_event(cudaEvent_t handle) {
    return events().remove(handle) ? kSuccess : static_cast<Status>(cudaErrorInvalidResourceHandle);
}

Status find_event(EventPtr& event, cudaEvent_t handle) {
    event = events().find(handle);
    return event ? kSuccess : static_cast<Status>(cudaErrorInvalidResourceHandle);
}

Status record_event(const EventPtr& event, Stream& stream, unsigned flags) {
    if (flags & ~cudaEventRecordExternal) return cudaErrorInvalidValue;
    if (&event->device != &stream.device) return cudaErrorInvalidResourceHandle;
    std::lock_guard<std::mutex> lock(state_mutex());
    if (Status failure = stream.device.failure) return failure;
    Action action;
    action.kind = ActionKind::kEventRecord;
    action.label = "event record";
    if (stream.capture) {
        if (!stream.capture->is_valid) return cudaErrorStreamCaptureInvalidated;
        if (flags & cudaEventRecordExternal) {
            action.event = event;
            return add_captured(stream, std::move(action));
        }
        event->capture = stream.capture;
        event->front = stream.front;
        return kSuccess;
    }
    HOSTCUDA_TRY(check_legacy_use(stream));
    event->capture.reset();
    event->front.clear();
    event->last = stream.enqueue(std::move(action));
    return kSuccess;
}

Status wait_event(const EventPtr& event, Stream& stream, unsigned flags) {
    if (flags & ~cudaEventWaitExternal) return cudaErrorInvalidValue;
    std::lock_guard<std::mutex> lock(state_mutex());
    if (Status failure = stream.device.failure) return failure;
    if (stream.capture && !stream.capture->is_valid) return cudaErrorStreamCaptureInvalidated;
    Action action;
    action.kind = ActionKind::kEventWait;
    action.label = "event wait";
    if (stream.capture && flags & cudaEventWaitExternal) {
        action.event = event;
        return add_captured(stream, std::move(action));
    }
    if (event->capture) return wait_for_captured(*event, stream);
    if (stream.capture) {
        stream.capture->invalidate();
        return cudaErrorStreamCaptureIsolation;
    }
    HOSTCUDA_TRY(check_legacy_use(stream));
    if (!event->last) return kSuccess;
    stream.enqueue(std::move(action), {event->last});
    return kSuccess;
}

Status query_event(Event& event) {
    std::lock_guard<std::mutex> lock(state_mutex());
    CompletionPtr last;
    HOSTCUDA_TRY(host_view(last, event));
    if (Status failure = event.device.failure) return failure;
    return !last || last->is_done() ? kSuccess : static_cast<Status>(cudaErrorNotReady);
}

Status synchronize_event(Event& event) {
    CompletionPtr last;
    {
        std::lock_guard<std::mutex> lock(state_mutex());
        HOSTCUDA_TRY(host_view(last, event));
    }
    if (last) last->wait();
    return event.device.failure;
}

Status elapsed_time(float& milliseconds, Event& start, Event& stop) {
    std::lock_guard<std::mutex> lock(state_mutex());
    if (!start.is_timed() || !stop.is_timed() || &start.device != &stop.device) return cudaErrorInvalidResourceHandle;
    if (start.capture || stop.capture) return cudaErrorCapturedEvent;
    if (!start.last || !stop.last) return cudaErrorInvalidResourceHandle;
    if (Status failure = start.device.failure) return failure;
    if (!start.last->is_done() || !stop.last->is_done()) return cudaErrorNotReady;
    std::chrono::duration<float, std::milli> passed = stop.last->finished_at() - start.last->finished_at();
    milliseconds = passed.count();
    return kSuccess;
}

}  // namespace hostcuda

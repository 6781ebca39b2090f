// What the runtime's functions have in common: the device they are about, and the error they leave behind.
#pragma once

#include "event.h"
#include "graph.h"
#include "stream.h"

namespace hostcuda {

constexpr int kLeastPriority = 0;
constexpr int kGreatestPriority = -5;

// With HOST_CUDA_TRACE=1, on stderr: the calls that do not succeed.
void trace(const char* function, Status status);

inline cudaError_t remember(Status status, const char* function = __builtin_FUNCTION()) {
    if (status) {
        this_thread().last_error = status;
        trace(function, status);
    }
    return static_cast<cudaError_t>(status);
}

template <typename Value, typename Given>
Status put(Value* target, Given value) {
    if (!target) return cudaErrorInvalidValue;
    *target = static_cast<Value>(value);
    return kSuccess;
}

// About no device, or only what never changes.
template <typename Body>
cudaError_t runtime_plain(Body body, const char* function = __builtin_FUNCTION()) {
    return remember(body(), function);
}

template <typename Body>
cudaError_t runtime_device(int ordinal, Body body, const char* function = __builtin_FUNCTION()) {
    Device* device = find_device(ordinal);
    return remember(device ? body(*device) : static_cast<Status>(cudaErrorInvalidDevice), function);
}

// On the current device, as long as it has not failed.
template <typename Body>
cudaError_t runtime(Body body, const char* function = __builtin_FUNCTION()) {
    Device* device;
    Status status = usable_device(device);
    return remember(status ? status : static_cast<Status>(body(*device)), function);
}

template <typename Body>
cudaError_t runtime_stream(cudaStream_t handle, Body body, const char* function = __builtin_FUNCTION()) {
    auto on_device = [&](Device&) -> Status {
        StreamPtr stream;
        HOSTCUDA_TRY(find_stream(stream, handle));
        return body(*stream);
    };
    return runtime(on_device, function);
}

template <typename Body>
cudaError_t runtime_event(cudaEvent_t handle, Body body, const char* function = __builtin_FUNCTION()) {
    auto on_device = [&](Device&) -> Status {
        EventPtr event;
        HOSTCUDA_TRY(find_event(event, handle));
        return body(*event);
    };
    return runtime(on_device, function);
}

}  // namespace hostcuda

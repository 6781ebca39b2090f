// What the driver's functions have in common: it is initialised, a context is current, its device has not failed.
#pragma once

#include "event.h"
#include "graph.h"
#include "runtime_call.h"
#include "stream.h"

namespace hostcuda {

template <typename Body>
CUresult driver_plain(Body body, const char* function = __builtin_FUNCTION()) {
    Status status = cudaErrorInitializationError;
    if (is_driver_initialized()) status = body();
    if (status) trace(function, status);
    return as_driver_status(status);
}

template <typename Body>
CUresult driver_device(CUdevice ordinal, Body body, const char* function = __builtin_FUNCTION()) {
    auto checked = [&]() -> Status {
        Device* device = find_device(ordinal);
        return device ? static_cast<Status>(body(*device)) : static_cast<Status>(cudaErrorInvalidDevice);
    };
    return driver_plain(checked, function);
}

template <typename Body>
CUresult driver(Body body, const char* function = __builtin_FUNCTION()) {
    auto checked = [&]() -> Status {
        if (this_thread().contexts.empty()) {
            complain("%s was called by a thread without a current context", function);
            return cudaErrorDeviceUninitialized;
        }
        Device* device;
        HOSTCUDA_TRY(usable_device(device));
        return body(*device);
    };
    return driver_plain(checked, function);
}

template <typename Body>
CUresult driver_stream(CUstream handle, Body body, const char* function = __builtin_FUNCTION()) {
    auto checked = [&](Device&) -> Status {
        StreamPtr stream;
        HOSTCUDA_TRY(find_stream(stream, handle));
        return body(*stream);
    };
    return driver(checked, function);
}

inline void* pointer(CUdeviceptr address) { return reinterpret_cast<void*>(address); }

}  // namespace hostcuda

// The CUDA runtime's functions: checks of arguments, and the thread's last error.
#include <cstdio>
#include <cstring>

#include "capture.h"
#include "memory.h"
#include "runtime_call.h"
#include "transfer.h"

using namespace hostcuda;

void hostcuda::trace(const char* function, Status status) {
    static const bool is_on = number_from_environment("HOST_CUDA_TRACE", 0) != 0;
    if (is_on && status != cudaErrorNotReady) complain("%s: %s", function, cudaGetErrorName(cudaError_t(status)));
}

extern "C" {

// Errors and versions

cudaError_t cudaGetLastError() {
    ThreadState& thread = this_thread();
    Status status = thread.last_error;
    // A failed device is told until it is reset.
    if (!thread.contexts.empty() && thread.contexts.back()->failure) return cudaError_t(+thread.contexts.back()->failure);
    thread.last_error = kSuccess;
    return cudaError_t(status);
}

cudaError_t cudaPeekAtLastError() {
    ThreadState& thread = this_thread();
    if (!thread.contexts.empty() && thread.contexts.back()->failure) return cudaError_t(+thread.contexts.back()->failure);
    return cudaError_t(thread.last_error);
}

const char* cudaGetErrorName(cudaError_t error) {
    const StatusText* text = find_status_text(error);
    return text ? text->runtime_name : "unrecognized error code";
}

const char* cudaGetErrorString(cudaError_t error) {
    const StatusText* text = find_status_text(error);
    return text ? text->text : "unrecognized error code";
}

cudaError_t cudaDriverGetVersion(int* version) {
    return runtime_plain([&] { return put(version, kVersion); });
}

cudaError_t cudaRuntimeGetVersion(int* version) {
    return runtime_plain([&] { return put(version, kVersion); });
}

// Devices

cudaError_t cudaGetDeviceCount(int* count) {
    return runtime_plain([&]() -> Status {
        HOSTCUDA_TRY(put(count, static_cast<int>(devices().size())));
        return devices().empty() ? cudaErrorNoDevice : cudaSuccess;
    });
}

cudaError_t cudaGetDevice(int* ordinal) {
    // Makes no context current, unlike almost all else: the driver's functions still lack one after it.
    return runtime_plain([&]() -> Status {
        if (devices().empty()) return cudaErrorNoDevice;
        const auto& contexts = this_thread().contexts;
        return put(ordinal, contexts.empty() ? 0 : contexts.back()->ordinal);
    });
}

cudaError_t cudaSetDevice(int ordinal) {
    return runtime_device(ordinal, [&](Device& device) {
        set_current_device(&device);
        return device.failure.load();
    });
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int ordinal) {
    return runtime_device(ordinal, [&](Device& device) -> Status {
        return value ? device_attribute(*value, attribute, device) : static_cast<Status>(cudaErrorInvalidValue);
    });
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int ordinal) {
    return runtime_device(ordinal, [&](Device& device) -> Status {
        if (!properties) return cudaErrorInvalidValue;
        fill_properties(*properties, device);
        return kSuccess;
    });
}

cudaError_t cudaDeviceGetPCIBusId(char* text, int nbytes, int ordinal) {
    return runtime_device(ordinal, [&](Device& device) -> Status {
        std::string id = pci_bus_id(device);
        if (!text || nbytes <= static_cast<int>(id.size())) return cudaErrorInvalidValue;
        std::memcpy(text, id.c_str(), id.size() + 1);
        return kSuccess;
    });
}

cudaError_t cudaDeviceSynchronize() {
    return runtime([](Device& device) { return synchronize_device(device); });
}

// Memory

cudaError_t cudaMalloc(void** address, std::size_t nbytes) {
    return runtime([&](Device& device) -> Status {
        HOSTCUDA_TRY(check_unsafe_call_unlocked());
        HOSTCUDA_TRY(put(address, static_cast<void*>(nullptr)));
        return nbytes ? allocate_device(address, nbytes, device) : kSuccess;
    });
}

cudaError_t cudaFree(void* address) {
    return runtime([&](Device&) -> Status {
        if (!address) return kSuccess;
        HOSTCUDA_TRY(check_unsafe_call_unlocked());
        return free_device(address);
    });
}

cudaError_t cudaHostAlloc(void** address, std::size_t nbytes, unsigned flags) {
    return runtime([&](Device& device) -> Status {
        HOSTCUDA_TRY(check_unsafe_call_unlocked());
        constexpr unsigned kKnown = cudaHostAllocPortable | cudaHostAllocMapped | cudaHostAllocWriteCombined;
        if (flags & ~kKnown) return cudaErrorInvalidValue;
        HOSTCUDA_TRY(put(address, static_cast<void*>(nullptr)));
        return nbytes ? allocate_pinned(address, nbytes, device, flags) : kSuccess;
    });
}

cudaError_t cudaFreeHost(void* address) {
    return runtime([&](Device&) -> Status {
        if (!address) return kSuccess;
        HOSTCUDA_TRY(check_unsafe_call_unlocked());
        return free_pinned(address);
    });
}

cudaError_t cudaHostRegister(void* address, std::size_t nbytes, unsigned flags) {
    return runtime([&](Device& device) -> Status {
        HOSTCUDA_TRY(check_unsafe_call_unlocked());
        return register_host(address, nbytes, device, flags);
    });
}

cudaError_t cudaHostUnregister(void* address) {
    return runtime([&](Device&) -> Status {
        HOSTCUDA_TRY(check_unsafe_call_unlocked());
        return address ? unregister_host(address) : static_cast<Status>(cudaErrorInvalidValue);
    });
}

cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* total) {
    return runtime([&](Device& device) -> Status {
        HOSTCUDA_TRY(put(free, device.memory_nbytes - device.used_nbytes));
        return put(total, device.memory_nbytes);
    });
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* address) {
    return runtime([&](Device&) -> Status {
        return attributes ? pointer_attributes(*attributes, address) : static_cast<Status>(cudaErrorInvalidValue);
    });
}

cudaError_t cudaMemcpy(void* dst, const void* src, std::size_t nbytes, cudaMemcpyKind kind) {
    return runtime([&](Device&) { return copy_now(Copy{dst, src, nbytes, kind}); });
}

cudaError_t cudaMemcpyAsync(void* dst, const void* src, std::size_t nbytes, cudaMemcpyKind kind, cudaStream_t handle) {
    return runtime_stream(handle, [&](Stream& stream) { return copy_async(Copy{dst, src, nbytes, kind}, stream); });
}

cudaError_t cudaMemset(void* address, int value, std::size_t nbytes) {
    return runtime([&](Device&) { return fill_now(Fill{address, value, nbytes}); });
}

cudaError_t cudaMemsetAsync(void* address, int value, std::size_t nbytes, cudaStream_t handle) {
    return runtime_stream(handle, [&](Stream& stream) { return fill_async(Fill{address, value, nbytes}, stream); });
}

// Streams

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* handle, unsigned flags, int priority) {
    return runtime([&](Device& device) -> Status {
        if (!handle) return cudaErrorInvalidValue;
        return create_stream(*handle, device, flags, priority);
    });
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* handle, unsigned flags) {
    return cudaStreamCreateWithPriority(handle, flags, 0);
}

cudaError_t cudaStreamCreate(cudaStream_t* handle) { return cudaStreamCreateWithPriority(handle, cudaStreamDefault, 0); }

cudaError_t cudaStreamDestroy(cudaStream_t handle) {
    return runtime([&](Device&) { return destroy_stream(handle); });
}

cudaError_t cudaStreamGetDevice(cudaStream_t handle, int* ordinal) {
    return runtime_stream(handle, [&](Stream& stream) { return put(ordinal, stream.device.ordinal); });
}

cudaError_t cudaStreamSynchronize(cudaStream_t handle) {
    return runtime_stream(handle, [](Stream& stream) { return synchronize_stream(stream); });
}

cudaError_t cudaStreamQuery(cudaStream_t handle) {
    return runtime_stream(handle, [](Stream& stream) { return query_stream(stream); });
}

cudaError_t cudaStreamWaitEvent(cudaStream_t handle, cudaEvent_t event_handle, unsigned flags) {
    return runtime_stream(handle, [&](Stream& stream) -> Status {
        EventPtr event;
        HOSTCUDA_TRY(find_event(event, event_handle));
        return wait_event(event, stream, flags);
    });
}

cudaError_t cudaLaunchHostFunc(cudaStream_t handle, cudaHostFn_t function, void* argument) {
    return runtime_stream(handle, [&](Stream& stream) { return call_host(stream, function, argument); });
}

// Events

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* handle, unsigned flags) {
    return runtime([&](Device& device) -> Status {
        return handle ? create_event(*handle, device, flags) : static_cast<Status>(cudaErrorInvalidValue);
    });
}

cudaError_t cudaEventCreate(cudaEvent_t* handle) { return cudaEventCreateWithFlags(handle, cudaEventDefault); }

cudaError_t cudaEventDestroy(cudaEvent_t handle) {
    return runtime([&](Device&) { return destroy_event(handle); });
}

cudaError_t cudaEventRecordWithFlags(cudaEvent_t handle, cudaStream_t stream_handle, unsigned flags) {
    return runtime_stream(stream_handle, [&](Stream& stream) -> Status {
        EventPtr event;
        HOSTCUDA_TRY(find_event(event, handle));
        return record_event(event, stream, flags);
    });
}

cudaError_t cudaEventRecord(cudaEvent_t handle, cudaStream_t stream) { return cudaEventRecordWithFlags(handle, stream, 0); }

cudaError_t cudaEventQuery(cudaEvent_t handle) {
    return runtime_event(handle, [](Event& event) { return query_event(event); });
}

cudaError_t cudaEventSynchronize(cudaEvent_t handle) {
    return runtime_event(handle, [](Event& event) { return synchronize_event(event); });
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start_handle, cudaEvent_t stop_handle) {
    return runtime([&](Device&) -> Status {
        EventPtr start, stop;
        HOSTCUDA_TRY(find_event(start, start_handle));
        HOSTCUDA_TRY(find_event(stop, stop_handle));
        return milliseconds ? elapsed_time(*milliseconds, *start, *stop) : static_cast<Status>(cudaErrorInvalidValue);
    });
}

// The profiler there is not

cudaError_t cudaProfilerStart() { return cudaSuccess; }
cudaError_t cudaProfilerStop() { return cudaSuccess; }

}  // extern "C"

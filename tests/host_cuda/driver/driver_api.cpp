// The CUDA driver's functions that CuPy, cuda.bindings and lanterne call; the others are found by nobody.
#include "capture.h"
#include "driver_call.h"
#include "memory.h"
#include "module.h"
#include "transfer.h"

using namespace hostcuda;

namespace {

CUresult launch(CUfunction handle, const LaunchShape& shape, CUstream stream_handle, void** parameters, void** extra) {
    return driver([&](Device& device) -> Status {
        StreamPtr stream;
        HOSTCUDA_TRY(find_stream(stream, stream_handle));
        FunctionPtr function = functions().find(handle);
        if (!function) return cudaErrorInvalidResourceHandle;
        if (&stream->device != &device) {
            complain("a kernel was launched on a stream of device %d while device %d was current",
                     stream->device.ordinal, device.ordinal);
            return cudaErrorInvalidResourceHandle;
        }
        return launch_kernel(function, shape, *stream, parameters, extra);
    });
}

Status load(CUmodule* module, const std::vector<char>& image, Device& device) {
    HOSTCUDA_TRY(check_unsafe_call_unlocked());
    return module ? load_module(*module, image, device) : static_cast<Status>(cudaErrorInvalidValue);
}

}  // namespace

extern "C" {

CUresult cuInit(unsigned flags) {
    if (flags) return CUDA_ERROR_INVALID_VALUE;
    if (devices().empty()) return CUDA_ERROR_NO_DEVICE;
    is_driver_initialized() = true;
    return CUDA_SUCCESS;
}

CUresult cuDriverGetVersion(int* version) { return as_driver_status(put(version, kVersion)); }

CUresult cuGetErrorName(CUresult error, const char** name) {
    const StatusText* text = find_status_text(error);
    bool is_known = text && text->driver_name;
    if (!name) return CUDA_ERROR_INVALID_VALUE;
    *name = is_known ? text->driver_name : nullptr;
    return is_known ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGetErrorString(CUresult error, const char** words) {
    const StatusText* text = find_status_text(error);
    bool is_known = text && text->driver_name;
    if (!words) return CUDA_ERROR_INVALID_VALUE;
    *words = is_known ? text->text : nullptr;
    return is_known ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

// Contexts: creating one gives the primary one.

CUresult cuCtxGetCurrent(CUcontext* context) {
    return driver_plain([&] {
        const auto& contexts = this_thread().contexts;
        return put(context, contexts.empty() ? nullptr : contexts.back()->context());
    });
}

CUresult cuCtxSetCurrent(CUcontext context) {
    return driver_plain([&]() -> Status {
        Device* device = find_context(context);
        if (context && !device) return cudaErrorDeviceUninitialized;
        if (device)
            set_current_device(device);
        else if (!this_thread().contexts.empty())
            this_thread().contexts.pop_back();
        return kSuccess;
    });
}

// Memory

CUresult cuMemGetAddressRange_v2(CUdeviceptr* base, size_t* nbytes, CUdeviceptr address) {
    return driver([&](Device&) -> Status {
        std::optional<Region> region = find_region(pointer(address));
        if (!region) return cudaErrorInvalidValue;
        if (base) *base = region->base;
        if (nbytes) *nbytes = region->nbytes;
        return kSuccess;
    });
}

CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr* mapped, void* address, unsigned flags) {
    return driver([&](Device&) -> Status {
        std::optional<Region> region = find_region(address);
        if (flags || !region || !region->is_host()) return cudaErrorInvalidValue;
        return put(mapped, reinterpret_cast<CUdeviceptr>(address));
    });
}

// Streams

CUresult cuStreamWriteValue32_v2(CUstream handle, CUdeviceptr address, cuuint32_t value, unsigned flags) {
    return driver_stream(handle, [&](Stream& stream) { return write_flag(address, value, flags, stream); });
}

CUresult cuStreamWaitValue32_v2(CUstream handle, CUdeviceptr address, cuuint32_t value, unsigned flags) {
    return driver_stream(handle, [&](Stream& stream) { return wait_flag(address, value, flags, stream); });
}

CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) {
    return driver_plain([&] { return exchange_capture_mode(reinterpret_cast<cudaStreamCaptureMode*>(mode)); });
}

// Modules, functions and launches

CUresult cuModuleLoadData(CUmodule* module, const void* image) {
    return driver([&](Device& device) -> Status {
        return image ? load(module, read_image(image), device) : static_cast<Status>(cudaErrorInvalidValue);
    });
}

CUresult cuModuleUnload(CUmodule module) {
    return driver([&](Device&) { return unload_module(module); });
}

CUresult cuModuleGetFunction(CUfunction* function, CUmodule module, const char* name) {
    return driver([&](Device&) -> Status {
        return function ? get_function(*function, module, name) : static_cast<Status>(cudaErrorInvalidValue);
    });
}

CUresult cuLaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                        unsigned block_y, unsigned block_z, unsigned shared_nbytes, CUstream stream, void** parameters,
                        void** extra) {
    return launch(function, {{grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, shared_nbytes}, stream, parameters,
                  extra);
}

}  // extern "C"

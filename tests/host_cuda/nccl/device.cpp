// CUDA as NCCL asks it: checks of memory and streams, captures, graphs.
#include "device.h"

#include <cuda.h>

#include "log.h"

namespace host_nccl {

OnDevice::OnDevice(int device) {
    cudaGetDevice(&before_);
    cudaSetDevice(device);
}

OnDevice::~OnDevice() { cudaSetDevice(before_); }

ncclResult_t check_cuda(cudaError_t error, const char* what) {
    if (error == cudaSuccess) return ncclSuccess;
    return refuse(ncclUnhandledCudaError, "%s: CUDA error %d: %s", what, int(error), cudaGetErrorString(error));
}

bool has_failed(int device) {
    OnDevice current(device);
    size_t free = 0, total = 0;
    return cudaMemGetInfo(&free, &total) != cudaSuccess;
}

ncclResult_t identify_device(int device, std::string* identity) {
    char text[32];
    ncclResult_t result = check_cuda(cudaDeviceGetPCIBusId(text, sizeof(text), device), "the device's address");
    *identity = text;
    return result;
}

ncclResult_t check_memory(const void* address, uint64_t nbytes, int device, const char* call, const char* argument) {
    if (!nbytes) return ncclSuccess;
    if (!address) return refuse(ncclInvalidArgument, "%s: %s is null", call, argument);
    cudaPointerAttributes attributes;
    ncclResult_t result = check_cuda(cudaPointerGetAttributes(&attributes, address), call);
    if (result != ncclSuccess) return result;
    if (attributes.type == cudaMemoryTypeUnregistered)
        return refuse(ncclInvalidArgument, "%s: %s %p is no memory that the device can reach", call, argument, address);
    if (attributes.type == cudaMemoryTypeDevice && attributes.device != device)
        return refuse(ncclInvalidArgument, "%s: %s %p is on device %d, the communicator on %d", call, argument, address,
                      attributes.device, device);
    if (attributes.type != cudaMemoryTypeDevice) return ncclSuccess;
    CUdeviceptr base = 0;
    size_t size = 0;
    auto start = reinterpret_cast<CUdeviceptr>(address);
    if (cuMemGetAddressRange(&base, &size, start) != CUDA_SUCCESS || start + nbytes > base + size)
        return refuse(ncclInvalidArgument, "%s: %s %p of %llu bytes runs over the end of its allocation", call,
                      argument, address, static_cast<unsigned long long>(nbytes));
    return ncclSuccess;
}

ncclResult_t check_stream(cudaStream_t stream, int device, const char* call) {
    // The default streams are of the device that is current.
    if (stream == nullptr || stream == cudaStreamLegacy || stream == cudaStreamPerThread) return ncclSuccess;
    int owner = -1;
    ncclResult_t result = check_cuda(cudaStreamGetDevice(stream, &owner), call);
    if (result != ncclSuccess) return result;
    if (owner != device)
        return refuse(ncclInvalidArgument, "%s: the stream is of device %d, the communicator of %d", call, owner,
                      device);
    return ncclSuccess;
}

ncclResult_t find_capture(cudaStream_t stream, unsigned long long* id, cudaGraph_t* graph) {
    cudaStreamCaptureStatus status;
    ncclResult_t result = check_cuda(cudaStreamGetCaptureInfo(stream, &status, id, graph, nullptr, nullptr, nullptr),
                                     "the stream's capture");
    if (result != ncclSuccess) return result;
    if (status == cudaStreamCaptureStatusInvalidated)
        return check_cuda(cudaErrorStreamCaptureInvalidated, "the stream's capture");
    if (status == cudaStreamCaptureStatusNone) *id = 0;
    return ncclSuccess;
}

ncclResult_t order_streams(cudaStream_t earlier, cudaStream_t later) {
    cudaEvent_t event = nullptr;
    ncclResult_t result = check_cuda(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "an event");
    if (result != ncclSuccess) return result;
    cudaError_t error = cudaEventRecord(event, earlier);
    if (error == cudaSuccess) error = cudaStreamWaitEvent(later, event, 0);
    cudaEventDestroy(event);
    return check_cuda(error, "the order of a group's streams");
}

ncclResult_t keep_for_graph(cudaGraph_t graph, void* object, cudaHostFn_t free) {
    cudaUserObject_t user = nullptr;
    cudaError_t error = cudaUserObjectCreate(&user, object, free, 1, cudaUserObjectNoDestructorSync);
    if (error == cudaSuccess) error = cudaGraphRetainUserObject(graph, user, 1, cudaGraphUserObjectMove);
    return check_cuda(error, "what a graph holds");
}

}  // namespace host_nccl

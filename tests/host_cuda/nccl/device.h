// What NCCL asks CUDA: devices of streams and memory, captures, and a place in a stream's queue.

#pragma once

#include <cuda_runtime_api.h>
#include "nccl_api.h"

#include <cstdint>
#include <string>

namespace host_nccl {

// Makes `device` the calling thread's current one while it lives.
class OnDevice {
public:
    explicit OnDevice(int device);
    ~OnDevice();
    OnDevice(const OnDevice&) = delete;

private:
    int before_;
};

// ncclUnhandledCudaError, said in words, unless `error` is success.
ncclResult_t check_cuda(cudaError_t error, const char* what);

// Whether the device is lost to this process, by a kernel's error.
bool has_failed(int device);

// What tells the device from all others of its host.
ncclResult_t identify_device(int device, std::string* identity);

// Refuses what is no memory of `device`: NCCL's kernel would end the context on it.
ncclResult_t check_memory(const void* address, uint64_t nbytes, int device, const char* call, const char* argument);

ncclResult_t check_stream(cudaStream_t stream, int device, const char* call);

// Which capture the stream is in (0: none), and its graph.
ncclResult_t find_capture(cudaStream_t stream, unsigned long long* id, cudaGraph_t* graph);

// Makes `later` wait for what is now queued on `earlier`.
ncclResult_t order_streams(cudaStream_t earlier, cudaStream_t later);

// Calls free(object) once neither the graph nor an executable one made of it is left.
ncclResult_t keep_for_graph(cudaGraph_t graph, void* object, cudaHostFn_t free);

}  // namespace host_nccl

// Copies, fills, host functions and flags: what streams are given besides kernels.
#pragma once

#include "stream.h"

namespace hostcuda {

struct Copy {
    void* dst;
    const void* src;
    std::size_t nbytes;
    cudaMemcpyKind kind;
};

struct Fill {
    void* dst;
    int value;
    std::size_t nbytes;
};

Status copy_async(const Copy& copy, Stream& stream);
// On the legacy stream; returns when CUDA's synchronous copies do, which is not always when the bytes are there.
Status copy_now(const Copy& copy);

Status fill_async(const Fill& fill, Stream& stream);
Status fill_now(const Fill& fill);

Status call_host(Stream& stream, cudaHostFn_t function, void* argument);

// The stream writes the word in memory that the device knows.
Status write_flag(CUdeviceptr address, cuuint32_t value, unsigned flags, Stream& stream);

// Holds the stream back until the 32 bits at `address` are at least `value`.
Status wait_flag(CUdeviceptr address, cuuint32_t value, unsigned flags, Stream& stream);

}  // namespace hostcuda

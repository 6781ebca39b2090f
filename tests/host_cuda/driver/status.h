// Status codes: the runtime's cudaError_t and the driver's CUresult agree in their numbers, so one int serves both.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

namespace hostcuda {

using Status = int;

constexpr Status kSuccess = cudaSuccess;

struct StatusText {
    Status status;
    const char* runtime_name;
    const char* driver_name;  // null where the driver has no such code
    const char* text;
};

// Null for a number that is no status.
const StatusText* find_status_text(Status status);

// The driver's code for a status; a few exist in the runtime only.
CUresult as_driver_status(Status status);

}  // namespace hostcuda

#define HOSTCUDA_TRY(expression)                                  \
    do {                                                          \
        if (hostcuda::Status status_ = (expression)) return status_; \
    } while (false)

// Of the profiler, which is a package of its own, CuPy's module links two functions.
#pragma once

#include <cuda_runtime_api.h>

extern "C" cudaError_t cudaProfilerStart();
extern "C" cudaError_t cudaProfilerStop();

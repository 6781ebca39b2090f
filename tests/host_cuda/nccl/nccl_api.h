// NCCL's interface as far as it is used here: its numbers and the beginning of its structures, as documented.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

enum ncclResult_t {
    ncclSuccess = 0,
    ncclUnhandledCudaError = 1,
    ncclSystemError = 2,
    ncclInternalError = 3,
    ncclInvalidArgument = 4,
    ncclInvalidUsage = 5,
    ncclRemoteError = 6,
    ncclInProgress = 7,
};

enum ncclDataType_t {
    ncclInt8 = 0,
    ncclUint8 = 1,
    ncclInt32 = 2,
    ncclUint32 = 3,
    ncclInt64 = 4,
    ncclUint64 = 5,
    ncclFloat16 = 6,
    ncclFloat32 = 7,
    ncclFloat64 = 8,
    ncclBfloat16 = 9,
};

enum ncclRedOp_t { ncclSum = 0, ncclProd = 1, ncclMax = 2, ncclMin = 3, ncclAvg = 4, ncclNumOps = 5 };

struct ncclUniqueId {
    char internal[128];
};

constexpr unsigned NCCL_API_MAGIC = 0xcafebeef;

// More follows in NCCL's; only this is read.
struct ncclConfig_t {
    size_t size;
    unsigned magic, version;
    int blocking;
};

typedef struct ncclComm* ncclComm_t;

extern "C" const char* ncclGetErrorString(ncclResult_t result);

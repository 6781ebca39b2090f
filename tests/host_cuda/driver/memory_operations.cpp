// The driver's stream memory operations: flags that a stream writes.
#include "memory.h"
#include "transfer.h"

#include <unistd.h>

namespace hostcuda {

namespace {

Status check_flag(CUdeviceptr address) {
    std::optional<Region> region;
    HOSTCUDA_TRY(region_of_range(region, reinterpret_cast<void*>(address), sizeof(cuuint32_t)));
    return region && address % sizeof(cuuint32_t) == 0 ? cudaSuccess : cudaErrorInvalidValue;
}

// Has `stream` do `operation` on the flag at `address`.
template <class Operation>
Status submit_flag(CUdeviceptr address, Stream& stream, Operation operation) {
    if (Status status = check_flag(address)) {
        complain("a stream's flag at %#llx is in no memory that the device knows", address);
        return status;
    }
    Action action;
    action.kind = ActionKind::kMemoryOperation;
    action.label = "memory operation";
    action.may_fault = true;
    action.run = [=]() -> Status {
        if (check_flag(address)) return cudaErrorIllegalAddress;
        operation(reinterpret_cast<cuuint32_t*>(address));
        return kSuccess;
    };
    return submit(stream, std::move(action));
}

}  // namespace

Status write_flag(CUdeviceptr address, cuuint32_t value, unsigned flags, Stream& stream) {
    if (flags & ~unsigned(CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER)) return cudaErrorInvalidValue;
    return submit_flag(address, stream, [=](cuuint32_t* flag) { __atomic_store_n(flag, value, __ATOMIC_RELEASE); });
}

Status wait_flag(CUdeviceptr address, cuuint32_t value, unsigned flags, Stream& stream) {
    if (flags != CU_STREAM_WAIT_VALUE_GEQ) return cudaErrorNotSupported;
    return submit_flag(address, stream, [=](cuuint32_t* flag) {
        // Around zero as the device compares: by the sign of the difference.
        while (static_cast<int>(__atomic_load_n(flag, __ATOMIC_ACQUIRE) - value) < 0) usleep(20);
    });
}

}  // namespace hostcuda

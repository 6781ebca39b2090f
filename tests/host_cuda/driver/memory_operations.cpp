// The driver's stream memory operations: flags that a stream writes.
#include "memory.h"
#include "transfer.h"

namespace hostcuda {

Status write_flag(CUdeviceptr address, cuuint32_t value, unsigned flags, Stream& stream) {
    if (flags & ~unsigned(CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER)) return cudaErrorInvalidValue;
    auto check = [address]() -> Status {
        std::optional<Region> region;
        HOSTCUDA_TRY(region_of_range(region, reinterpret_cast<void*>(address), sizeof value));
        return region && address % sizeof value == 0 ? cudaSuccess : cudaErrorInvalidValue;
    };
    if (Status status = check()) {
        complain("a stream's flag at %#llx is in no memory that the device knows", address);
        return status;
    }
    Action action;
    action.kind = ActionKind::kMemoryOperation;
    action.label = "memory operation";
    action.may_fault = true;
    action.run = [=]() -> Status {
        if (check()) return cudaErrorIllegalAddress;
        __atomic_store_n(reinterpret_cast<cuuint32_t*>(address), value, __ATOMIC_RELEASE);
        return kSuccess;
    };
    return submit(stream, std::move(action));
}

}  // namespace hostcuda

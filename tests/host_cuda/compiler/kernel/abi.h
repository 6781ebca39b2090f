// What a kernel's module (compiled by libnvrtc with kernel_shim.h) and the runtime linked into it (runtime.cpp) share.
#pragma once

#include "vectors.h"

namespace hostcuda {

// What the running thread knows of itself. Register r15 points at it all through a launch, in every function of the
// module: thread-local variables would be a call each, and would not follow a fiber.
struct Thread {
    uint3 thread_index, block_index;
    dim3 block_dim, grid_dim;
};

struct Kernel {
    const char* name;
    void (*run_thread)(const void* arguments);
    unsigned max_threads_per_block;
    bool flushes_subnormals;  // -ftz=true
};

// What the lanes of a warp gave at a collective intrinsic, for those in `participants`.
struct WarpValues {
    unsigned long long of_lane[32];
    unsigned participants;
};

enum class WarpOperation { sync, shuffle, vote, match, reduce };

// The values of cudaError_t that a launch returns.
constexpr int SUCCESS = 0, INVALID_CONFIGURATION = 9, ASSERT = 710, LAUNCH_FAILURE = 719;

}  // namespace hostcuda

extern "C" {
int hostcuda_run(const hostcuda::Kernel* kernel, const void* arguments, const unsigned* grid, const unsigned* block,
                 unsigned dynamic_shared_nbytes);

// Waits for all threads of the block that have not ended; returns for how many of them `predicate` held.
int hostcuda_block_barrier(int line, bool predicate);

// Waits for all lanes of `mask` that have not ended, which must call it with the same mask and operation.
const hostcuda::WarpValues* hostcuda_warp_exchange(hostcuda::WarpOperation operation, unsigned mask,
                                                   unsigned long long value);

unsigned hostcuda_lane();
unsigned hostcuda_active_lanes();

// Ends the launch, which returns `error`, with a message on stderr.
[[noreturn]] void hostcuda_fail(int error, const char* message);

unsigned long long hostcuda_now_ns();
void hostcuda_sleep_ns(unsigned duration_ns);
}

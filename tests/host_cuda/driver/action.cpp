// Running one action: faults of kernels are the device's failure, not the process's.
#include "action.h"

#include <immintrin.h>

#include <atomic>
#include <csetjmp>
#include <chrono>
#include <csignal>
#include <random>
#include <thread>

#include "device.h"

namespace hostcuda {
namespace {

// Where this thread goes on after a bad access; null while it runs what may not have one.
__attribute__((tls_model("initial-exec"))) thread_local sigjmp_buf* fault_exit = nullptr;

// Rounding to nearest, no exceptions, subnormal numbers as they are; a kernel may have changed it.
constexpr unsigned kDefaultFloatingPointState = 0x1F80;

struct sigaction previous_actions[NSIG];

void on_fault(int signal_number, siginfo_t* info, void* context) {
    if (fault_exit) siglongjmp(*fault_exit, signal_number);
    const struct sigaction& previous = previous_actions[signal_number];
    if (previous.sa_flags & SA_SIGINFO)
        previous.sa_sigaction(signal_number, info, context);
    else if (previous.sa_handler != SIG_DFL && previous.sa_handler != SIG_IGN)
        previous.sa_handler(signal_number);
    else
        sigaction(signal_number, &previous, nullptr);  // the instruction is tried again, and ends the process
}

void watch_faults() {
    static const bool once = [] {
        struct sigaction action = {};
        action.sa_sigaction = on_fault;
        action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
        sigemptyset(&action.sa_mask);
        for (int signal_number : {SIGSEGV, SIGBUS, SIGFPE})
            sigaction(signal_number, &action, &previous_actions[signal_number]);
        return true;
    }();
    (void)once;
}

Status run_guarded(const Action& action, Device& device) {
    watch_faults();
    sigjmp_buf here;
    int signal_number = sigsetjmp(here, 0);
    if (signal_number) {
        // What the action held is leaked: the device is lost anyway.
        fault_exit = nullptr;
        _mm_setcsr(kDefaultFloatingPointState);
        Status status = signal_number == SIGFPE ? cudaErrorLaunchFailure : cudaErrorIllegalAddress;
        device.fail(status, action.label + ": signal " + std::to_string(signal_number));
        return status;
    }
    fault_exit = &here;
    Status status = action.run();
    fault_exit = nullptr;
    return status;
}

// A number by chance. HOST_CUDA_SEED: the same ones in each run, of every thread that does a device's work its own.
std::size_t by_chance() {
    static const std::size_t seed = number_from_environment("HOST_CUDA_SEED", 0);
    static std::atomic<std::size_t> num_threads{0};
    static thread_local std::minstd_rand chance(seed ? seed + 7919 * num_threads++ : std::random_device{}());
    return chance();
}

// HOST_CUDA_DELAY_US: work begins up to so much later, by chance, which brings out missing waits.
void delay() {
    static const std::size_t most = number_from_environment("HOST_CUDA_DELAY_US", 0);
    if (most) std::this_thread::sleep_for(std::chrono::microseconds(by_chance() % (most + 1)));
}

// HOST_CUDA_FAIL_PER_MILLION: so many kernels fail, by chance, and the device with them.
bool fails(const Action& action) {
    static const std::size_t per_million = number_from_environment("HOST_CUDA_FAIL_PER_MILLION", 0);
    return per_million && action.kind == ActionKind::kKernel && by_chance() % 1000000 < per_million;
}

}  // namespace

void perform(const Action& action, Device& device) {
    delay();
    if (!action.run || (device.failure && !action.runs_after_failure)) return;
    if (fails(action)) {
        device.fail(cudaErrorLaunchFailure, action.label + ": by chance, as HOST_CUDA_FAIL_PER_MILLION asks");
        return;
    }
    Status status = action.may_fault ? run_guarded(action, device) : action.run();
    if (status) device.fail(status, action.label);
}

}  // namespace hostcuda

// The devices there are, and what each thread of the program has set: its current device, its last error.
//
// Environment: HOST_CUDA_DEVICES, how many (1); HOST_CUDA_MEMORY, bytes of each (2 GiB); HOST_CUDA_DELAY_US, see
// action.cpp (0); HOST_CUDA_TRACE, see runtime_call.h (0).
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "status.h"

namespace hostcuda {

struct Stream;

struct Device {
    explicit Device(int ordinal, std::size_t nbytes);

    const int ordinal;
    const std::string name;
    const std::size_t memory_nbytes;
    std::atomic<std::size_t> used_nbytes{0};
    // Once set, every call on the device fails with it, and what is queued is dropped.
    std::atomic<Status> failure{kSuccess};

    // Under state_mutex().
    std::shared_ptr<Stream> legacy_stream;
    std::set<std::shared_ptr<Stream>> streams;

    // The context: there is but the primary one.
    CUcontext context() { return reinterpret_cast<CUcontext>(this); }
    void fail(Status status, const std::string& why);
};

// Made at the first call. None where HOST_CUDA_DEVICES is 0.
const std::vector<Device*>& devices();
Device* find_device(int ordinal);
Device* find_context(CUcontext context);

// By cuInit, or by the runtime for the whole process when it first makes a context current.
std::atomic<bool>& is_driver_initialized();

// Guards streams, events, captures and graphs; never held while waiting for work.
std::mutex& state_mutex();

struct ThreadState {
    std::vector<Device*> contexts;  // the last is the current one
    Status last_error = kSuccess;
    cudaStreamCaptureMode capture_mode = cudaStreamCaptureModeGlobal;
    bool is_in_host_function = false;
};

ThreadState& this_thread();

// The current device; as in CUDA's runtime, the first one where the thread has chosen none. Null without devices.
Device* current_device();
void set_current_device(Device* device);

// The current device, if calls on it may go on.
Status usable_device(Device*& device);

Status device_attribute(int& value, int attribute, Device& device);
void fill_properties(cudaDeviceProp& properties, Device& device);
std::string pci_bus_id(const Device& device);

constexpr int kVersion = 13020;
constexpr int kMaxThreadsPerBlock = 1024;
constexpr int kStaticSharedNbytes = 48 << 10;
constexpr int kMaxSharedNbytes = 227 << 10;

// The number that an environment variable says.
std::size_t number_from_environment(const char* name, std::size_t otherwise);

// A message of the stand-in itself, on stderr: what CUDA leaves undefined, or refuses without saying why.
void complain(const char* format, ...) __attribute__((format(printf, 1, 2)));

}  // namespace hostcuda

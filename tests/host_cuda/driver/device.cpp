// Devices, threads and their errors.
#include "device.h"

#include <unistd.h>

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace hostcuda {

std::size_t number_from_environment(const char* name, std::size_t otherwise) {
    const char* text = std::getenv(name);
    if (!text || !*text) return otherwise;
    char* end;
    unsigned long long number = std::strtoull(text, &end, 10);
    if (*end) {
        complain("%s: got \"%s\", expected a number", name, text);
        std::abort();
    }
    return number;
}

Device::Device(int ordinal, std::size_t nbytes)
    : ordinal(ordinal), name("HostCUDA " + std::to_string(ordinal)), memory_nbytes(nbytes) {}

void Device::fail(Status status, const std::string& why) {
    Status none = kSuccess;
    if (!failure.compare_exchange_strong(none, status)) return;
    const StatusText* text = find_status_text(status);
    complain("device %d has failed: %s (%s)", ordinal, text ? text->runtime_name : "?", why.c_str());
}

// Whatever outlives main() is never destroyed: workers may still use it while the process ends.
const std::vector<Device*>& devices() {
    static const std::vector<Device*>& all = *[] {
        auto* made = new std::vector<Device*>;
        int count = static_cast<int>(number_from_environment("HOST_CUDA_DEVICES", 1));
        std::size_t nbytes = number_from_environment("HOST_CUDA_MEMORY", std::size_t{2} << 30);
        for (int ordinal = 0; ordinal < count; ++ordinal) made->push_back(new Device(ordinal, nbytes));
        return made;
    }();
    return all;
}

Device* find_device(int ordinal) {
    const auto& all = devices();
    return ordinal >= 0 && ordinal < static_cast<int>(all.size()) ? all[ordinal] : nullptr;
}

Device* find_context(CUcontext context) {
    for (Device* device : devices())
        if (device->context() == context) return device;
    return nullptr;
}

std::atomic<bool>& is_driver_initialized() {
    static std::atomic<bool> is_initialized{false};
    return is_initialized;
}

std::mutex& state_mutex() {
    static std::mutex& mutex = *new std::mutex;
    return mutex;
}

ThreadState& this_thread() {
    // Not destroyed with the thread: a library's own thread-local objects may call CUDA as it ends.
    static thread_local ThreadState* state = new ThreadState;
    return *state;
}

Device* current_device() {
    ThreadState& thread = this_thread();
    if (thread.contexts.empty()) {
        Device* first = find_device(0);
        if (!first) return nullptr;
        set_current_device(first);
    }
    return thread.contexts.back();
}

void set_current_device(Device* device) {
    is_driver_initialized() = true;
    ThreadState& thread = this_thread();
    if (thread.contexts.empty())
        thread.contexts.push_back(device);
    else
        thread.contexts.back() = device;
}

Status usable_device(Device*& device) {
    if (this_thread().is_in_host_function) {
        complain("a host function of a stream called CUDA, which is not permitted");
        return cudaErrorNotPermitted;
    }
    device = current_device();
    return device ? device->failure.load() : static_cast<Status>(cudaErrorNoDevice);
}

void complain(const char* format, ...) {
    char text[1024];
    va_list arguments;
    va_start(arguments, format);
    std::vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    std::fprintf(stderr, "host CUDA [%d]: %s\n", getpid(), text);
}

}  // namespace hostcuda

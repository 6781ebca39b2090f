// cuGetProcAddress: the driver's functions by name, for callers made for CUDA 12 and 13.
#include <dlfcn.h>

#include <cstring>
#include <string>

#include "driver_call.h"

using namespace hostcuda;

namespace {

void* own_symbol(const std::string& name) {
    static void* const self = [] {
        Dl_info info;
        dladdr(reinterpret_cast<void*>(&own_symbol), &info);
        return dlopen(info.dli_fname, RTLD_NOW | RTLD_NOLOAD);
    }();
    return name.compare(0, 2, "cu") || !name.compare(0, 4, "cuda") ? nullptr : dlsym(self, name.c_str());
}

// A function is exported by the latest of its names that has parameters as CUDA 13's header tells them.
void* find_entry(const std::string& name) {
    void* second = own_symbol(name + "_v2");
    return second ? second : own_symbol(name);
}

}  // namespace

extern "C" {

CUresult cuGetProcAddress_v2(const char* name, void** function, int, cuuint64_t flags,
                             CUdriverProcAddressQueryResult* result) {
    if (!name || !function) return CUDA_ERROR_INVALID_VALUE;
    // No function here takes the stream 0 for the thread's own.
    bool is_per_thread = flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;
    *function = is_per_thread ? nullptr : find_entry(name);
    if (result) *result = *function ? CU_GET_PROC_ADDRESS_SUCCESS : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    return *function ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

}  // extern "C"

// Modules: shared objects made by the NVRTC stand-in, and the kernels in them.
#pragma once

#include <array>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "stream.h"

namespace hostcuda {

// What a shared object exports for each kernel NAME: hostcuda_launch_NAME, hostcuda_param_nbytes_NAME (the count of
// parameters, then the size of each) and hostcuda_attributes_NAME (static shared bytes, most threads of a block,
// registers, reserved). The launch returns what became of it: success, or a failed assertion and the like.
using LaunchFunction = int (*)(void** parameters, const unsigned* grid, const unsigned* block, unsigned shared_nbytes);

struct Module {
    Module(Device& device, void* library) : device(device), library(library) {}
    ~Module();

    Device& device;
    void* const library;
    // Under modules_mutex().
    std::map<std::string, std::uintptr_t> function_handles;
};

using ModulePtr = std::shared_ptr<Module>;

struct Function {
    ModulePtr module;
    std::string name;
    LaunchFunction launch;
    std::vector<unsigned> parameter_nbytes;
    int static_shared_nbytes;
    int max_threads;
    int num_registers;
    int max_dynamic_shared_nbytes;
};

using FunctionPtr = std::shared_ptr<Function>;

Registry<Module>& modules();
Registry<Function>& functions();
std::mutex& modules_mutex();

// The bytes of the shared object at `image`, or in the text that stands for PTX; empty if it is neither.
std::vector<char> read_image(const void* image);

Status load_module(CUmodule& handle, const std::vector<char>& image, Device& device);
Status unload_module(CUmodule handle);
Status get_function(CUfunction& handle, CUmodule module, const char* name);

struct LaunchShape {
    std::array<unsigned, 3> grid;
    std::array<unsigned, 3> block;
    unsigned shared_nbytes;
};

// `parameters` one pointer each, or null with them all in a row in `extra`, as the driver takes them.
Status launch_kernel(const FunctionPtr& function, const LaunchShape& shape, Stream& stream, void** parameters,
                     void** extra);
// Where a parameter lies in a row of them, after `end` bytes of others.
std::size_t parameter_offset(std::size_t end, std::size_t nbytes);

}  // namespace hostcuda

// Kernel launches: their shapes, their parameters, and pointers that the device may not follow.
#include <algorithm>
#include <cstring>

#include "memory.h"
#include "module.h"

namespace hostcuda {
namespace {

constexpr std::size_t kMaxParametersNbytes = 32764;
constexpr std::array<unsigned, 3> kMaxGrid = {0x7FFFFFFF, 65535, 65535};
constexpr std::array<unsigned, 3> kMaxBlock = {1024, 1024, 64};

// The parameters as the caller has them now; the kernel runs later.
struct Parameters {
    struct alignas(alignof(std::max_align_t)) Unit {
        char bytes[alignof(std::max_align_t)];
    };

    std::vector<Unit> units;
    std::vector<std::size_t> offsets;

    void* at(std::size_t which) { return reinterpret_cast<char*>(units.data()) + offsets[which]; }
};

std::size_t round_up(std::size_t number, std::size_t unit) { return (number + unit - 1) / unit * unit; }

// The buffer of parameters that `extra` names; null if it names none.
const char* find_buffer(void** extra, std::size_t& nbytes) {
    const char* buffer = nullptr;
    nbytes = 0;
    for (; extra && *extra != CU_LAUNCH_PARAM_END; extra += 2) {
        if (*extra == CU_LAUNCH_PARAM_BUFFER_POINTER) buffer = static_cast<const char*>(extra[1]);
        if (*extra == CU_LAUNCH_PARAM_BUFFER_SIZE) nbytes = *static_cast<const std::size_t*>(extra[1]);
    }
    return buffer;
}

Status copy_parameters(Parameters& parameters, const Function& function, void** given, void** extra) {
    const auto& sizes = function.parameter_nbytes;
    std::size_t end = 0, end_in_buffer = 0, buffer_nbytes = 0;
    std::vector<std::size_t> offsets_in_buffer;
    for (unsigned nbytes : sizes) {
        parameters.offsets.push_back(end);
        end = round_up(end + nbytes, sizeof(Parameters::Unit));
        offsets_in_buffer.push_back(parameter_offset(end_in_buffer, nbytes));
        end_in_buffer = offsets_in_buffer.back() + nbytes;
    }
    if (end_in_buffer > kMaxParametersNbytes) return cudaErrorInvalidValue;
    parameters.units.resize(end / sizeof(Parameters::Unit));
    if (given && extra) return cudaErrorInvalidValue;
    const char* buffer = find_buffer(extra, buffer_nbytes);
    if (!sizes.empty() && !given && !buffer) return cudaErrorInvalidValue;
    if (buffer && buffer_nbytes < end_in_buffer) return cudaErrorInvalidValue;
    for (std::size_t which = 0; which < sizes.size(); ++which) {
        const void* source = buffer ? buffer + offsets_in_buffer[which] : given[which];
        if (!source) return cudaErrorInvalidValue;
        std::memcpy(parameters.at(which), source, sizes[which]);
    }
    return kSuccess;
}

Status check_shape(const LaunchShape& shape, const Function& function) {
    for (int axis = 0; axis < 3; ++axis) {
        if (!shape.grid[axis] || shape.grid[axis] > kMaxGrid[axis]) return cudaErrorInvalidValue;
        if (!shape.block[axis] || shape.block[axis] > kMaxBlock[axis]) return cudaErrorInvalidValue;
    }
    std::uint64_t num_threads = std::uint64_t{shape.block[0]} * shape.block[1] * shape.block[2];
    if (num_threads > kMaxThreadsPerBlock) return cudaErrorInvalidValue;
    // What the kernel was compiled for may be less than what any block may have.
    if (num_threads > static_cast<std::uint64_t>(function.max_threads)) return cudaErrorInvalidValue;
    if (shape.shared_nbytes > static_cast<unsigned>(function.max_dynamic_shared_nbytes)) return cudaErrorInvalidValue;
    return kSuccess;
}

// On a GPU the kernel would fault at its first access to such memory. Only what begins with a pointer is looked at:
// pointers, and CuPy's arrays.
Status check_pointers(Parameters& parameters, const Function& function) {
    Device& device = function.module->device;
    for (std::size_t which = 0; which < parameters.offsets.size(); ++which) {
        if (function.parameter_nbytes[which] < sizeof(std::uintptr_t)) continue;
        std::uintptr_t address;
        std::memcpy(&address, parameters.at(which), sizeof address);
        std::optional<Region> region = find_region(reinterpret_cast<void*>(address));
        if (!region && is_unknown_memory(address)) {
            complain("parameter %zu of kernel %s, %#zx, is host memory that is not pinned, or was freed", which,
                     function.name.c_str(), address);
            return cudaErrorIllegalAddress;
        }
        if (!region || region->kind != MemoryKind::kDevice || region->device == &device) continue;
        complain("parameter %zu of kernel %s is memory of device %d, not of device %d", which,
                 function.name.c_str(), region->device->ordinal, device.ordinal);
        return cudaErrorIllegalAddress;
    }
    return kSuccess;
}

}  // namespace

// The kernel tells no alignments: they follow from the sizes, as for scalars and for structures of one type.
std::size_t parameter_offset(std::size_t end, std::size_t nbytes) {
    std::size_t largest_power = nbytes ? nbytes & -nbytes : 1;
    return round_up(end, std::min<std::size_t>(largest_power, alignof(std::max_align_t)));
}

Status launch_kernel(const FunctionPtr& function, const LaunchShape& shape, Stream& stream, void** given,
                     void** extra) {
    if (&function->module->device != &stream.device) {
        complain("kernel %s of device %d was launched on a stream of device %d", function->name.c_str(),
                 function->module->device.ordinal, stream.device.ordinal);
        return cudaErrorInvalidResourceHandle;
    }
    HOSTCUDA_TRY(check_shape(shape, *function));
    auto parameters = std::make_shared<Parameters>();
    HOSTCUDA_TRY(copy_parameters(*parameters, *function, given, extra));
    Action action;
    action.kind = ActionKind::kKernel;
    action.label = function->name;
    action.may_fault = true;
    action.run = [function, shape, parameters]() -> Status {
        HOSTCUDA_TRY(check_pointers(*parameters, *function));
        std::vector<void*> pointers;
        for (std::size_t which = 0; which < parameters->offsets.size(); ++which)
            pointers.push_back(parameters->at(which));
        return function->launch(pointers.data(), shape.grid.data(), shape.block.data(), shape.shared_nbytes);
    };
    return submit(stream, std::move(action));
}

}  // namespace hostcuda

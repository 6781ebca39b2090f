// Stands in for MSCCL++'s own core.hpp and channels, which need CUDA: what its parser of plans names, and no more.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <mscclpp/errors.hpp>

namespace mscclpp {

class Communicator;
enum class DataType;
enum class Transport;
using MemoryId = uint32_t;
struct BaseMemoryChannel;
struct BasePortChannel;
struct SwitchChannel;
template <typename T>
struct DeviceHandle {};

}  // namespace mscclpp

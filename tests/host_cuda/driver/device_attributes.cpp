// What the devices say of themselves: an H100 where it matters to who asks here.
#include <cstdio>
#include <cstring>
#include <map>

#include "device.h"

namespace hostcuda {

Status device_attribute(int& value, int attribute, Device& device) {
    static const auto& table = *new std::map<int, int>{
        {cudaDevAttrMaxThreadsPerBlock, kMaxThreadsPerBlock},
        {cudaDevAttrMaxBlockDimX, 1024},
        {cudaDevAttrMaxBlockDimY, 1024},
        {cudaDevAttrMaxBlockDimZ, 64},
        {cudaDevAttrMaxGridDimX, 0x7FFFFFFF},
        {cudaDevAttrMaxGridDimY, 65535},
        {cudaDevAttrMaxGridDimZ, 65535},
        {cudaDevAttrMaxSharedMemoryPerBlock, kStaticSharedNbytes},
        {cudaDevAttrMaxSharedMemoryPerBlockOptin, kMaxSharedNbytes},
        {cudaDevAttrWarpSize, 32},
        {cudaDevAttrMultiProcessorCount, 132},
        {cudaDevAttrMaxThreadsPerMultiProcessor, 2048},
        {cudaDevAttrCanMapHostMemory, 1},
        {cudaDevAttrConcurrentKernels, 1},
        {cudaDevAttrAsyncEngineCount, 3},
        {cudaDevAttrUnifiedAddressing, 1},
        {cudaDevAttrComputeCapabilityMajor, 9},
        {cudaDevAttrStreamPrioritiesSupported, 1},
        {cudaDevAttrCanUseHostPointerForRegisteredMem, 1},
        {cudaDevAttrHostRegisterSupported, 1},
        {CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS, 1},
    };
    if (attribute < 1 || attribute >= CU_DEVICE_ATTRIBUTE_MAX) return cudaErrorInvalidValue;
    auto found = table.find(attribute);
    value = found == table.end() ? 0 : found->second;  // whatever is not listed is not there
    if (attribute == cudaDevAttrPciDeviceId) value = device.ordinal;
    return kSuccess;
}

std::string pci_bus_id(const Device& device) {
    char text[32];
    std::snprintf(text, sizeof text, "0000:00:%02X.0", device.ordinal);
    return text;
}

void fill_properties(cudaDeviceProp& properties, Device& device) {
    std::memset(&properties, 0, sizeof properties);
    auto attribute = [&](int which) {
        int value = 0;
        device_attribute(value, which, device);
        return value;
    };
    std::snprintf(properties.name, sizeof properties.name, "%s", device.name.c_str());
    std::snprintf(properties.uuid.bytes, sizeof properties.uuid.bytes, "HostCUDA%07d", device.ordinal);
    properties.totalGlobalMem = device.memory_nbytes;
    properties.sharedMemPerBlock = kStaticSharedNbytes;
    properties.sharedMemPerBlockOptin = kMaxSharedNbytes;
    properties.warpSize = attribute(cudaDevAttrWarpSize);
    properties.maxThreadsPerBlock = kMaxThreadsPerBlock;
    for (int axis = 0; axis < 3; ++axis) {
        properties.maxThreadsDim[axis] = attribute(cudaDevAttrMaxBlockDimX + axis);
        properties.maxGridSize[axis] = attribute(cudaDevAttrMaxGridDimX + axis);
    }
    properties.major = attribute(cudaDevAttrComputeCapabilityMajor);
    properties.multiProcessorCount = attribute(cudaDevAttrMultiProcessorCount);
    properties.maxThreadsPerMultiProcessor = attribute(cudaDevAttrMaxThreadsPerMultiProcessor);
    properties.canMapHostMemory = properties.concurrentKernels = properties.unifiedAddressing = 1;
    properties.pciDeviceID = device.ordinal;
    properties.asyncEngineCount = attribute(cudaDevAttrAsyncEngineCount);
}

}  // namespace hostcuda

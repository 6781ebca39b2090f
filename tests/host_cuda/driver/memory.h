// Memory that the devices know: their own, and pinned host memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "device.h"

namespace hostcuda {

enum class MemoryKind { kDevice, kPinned, kRegistered };

struct Region {
    std::uintptr_t base;
    std::size_t nbytes;
    MemoryKind kind;
    Device* device;
    unsigned flags;
    unsigned long long id;
    // What to unmap: the region lies at the end of it, before a page that nothing may touch. Null if not ours.
    void* mapping;
    std::size_t mapping_nbytes;

    bool is_host() const { return kind == MemoryKind::kPinned || kind == MemoryKind::kRegistered; }
    std::uintptr_t end() const { return base + nbytes; }
};

Status allocate_device(void** address, std::size_t nbytes, Device& device);
Status allocate_pinned(void** address, std::size_t nbytes, Device& device, unsigned flags);
// These three wait for all work of the region's device first, as CUDA does in practice.
Status free_device(void* address);
Status free_pinned(void* address);
Status unregister_host(void* address);
Status register_host(void* address, std::size_t nbytes, Device& device, unsigned flags);

// The region that holds the address.
std::optional<Region> find_region(const void* address);

// The region of all the bytes from `address` on; nothing for host memory that the devices do not know. Bytes that leave
// a region, or run into one, are an invalid value.
Status region_of_range(std::optional<Region>& region, const void* address, std::size_t nbytes);

// Whether the address is of memory that the process has, but no device knows; freed memory is such, for a while.
bool is_unknown_memory(std::uintptr_t address);


Status pointer_attributes(cudaPointerAttributes& attributes, const void* address);

}  // namespace hostcuda

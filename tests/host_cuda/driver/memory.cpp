// The map of all memory that devices know, and its allocation before guard pages.
#include "memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <deque>
#include <map>

#include "stream.h"

namespace hostcuda {
namespace {

constexpr std::size_t kAlignment = 512;
constexpr int kFresh = 0xCD;
constexpr std::size_t kMaxQuarantined = 1024;

struct Memory {
    std::mutex mutex;
    std::map<std::uintptr_t, Region> regions;
    // Freed mappings: kept, without access, so that a late use of one faults instead of hitting its successor.
    std::deque<std::pair<void*, std::size_t>> quarantine;
    unsigned long long num_made = 0;
};

Memory& memory() {
    static Memory& all = *new Memory;
    return all;
}

std::size_t round_up(std::size_t number, std::size_t unit) { return (number + unit - 1) / unit * unit; }

std::size_t page_nbytes() {
    static const std::size_t nbytes = sysconf(_SC_PAGESIZE);
    return nbytes;
}

// Under the lock. The region that begins last at or before the address, if it reaches beyond it.
const Region* find_locked(std::uintptr_t address) {
    auto& regions = memory().regions;
    auto after = regions.upper_bound(address);
    if (after == regions.begin()) return nullptr;
    const Region& region = std::prev(after)->second;
    return address < region.end() ? &region : nullptr;
}

bool overlaps_locked(std::uintptr_t begin, std::uintptr_t end) {
    auto& regions = memory().regions;
    auto after = regions.lower_bound(begin);
    return find_locked(begin) || (after != regions.end() && after->first < end);
}

Status map_region(void** address, std::size_t nbytes, Device& device, MemoryKind kind, unsigned flags) {
    std::size_t room = round_up(nbytes, kAlignment);
    std::size_t mapped = round_up(room, page_nbytes()) + page_nbytes();
    void* mapping = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapping == MAP_FAILED) return cudaErrorMemoryAllocation;
    char* guard = static_cast<char*>(mapping) + mapped - page_nbytes();
    mprotect(guard, page_nbytes(), PROT_NONE);
    *address = guard - room;
    std::memset(*address, kFresh, room);
    Memory& all = memory();
    std::lock_guard<std::mutex> lock(all.mutex);
    auto base = reinterpret_cast<std::uintptr_t>(*address);
    all.regions[base] = Region{base, nbytes, kind, &device, flags, ++all.num_made, mapping, mapped};
    return kSuccess;
}

void retire(const Region& region) {
    if (region.kind == MemoryKind::kDevice)
        region.device->used_nbytes -= round_up(region.nbytes, kAlignment);
    if (!region.mapping) return;
    mprotect(region.mapping, region.mapping_nbytes, PROT_NONE);
    madvise(region.mapping, region.mapping_nbytes, MADV_DONTNEED);
    Memory& all = memory();
    std::lock_guard<std::mutex> lock(all.mutex);
    all.quarantine.emplace_back(region.mapping, region.mapping_nbytes);
    if (all.quarantine.size() <= kMaxQuarantined) return;
    munmap(all.quarantine.front().first, all.quarantine.front().second);
    all.quarantine.pop_front();
}

// Takes out the region that begins at the address and is of the kind, once its device is done with all work.
Status remove_region(void* address, MemoryKind kind, Status otherwise) {
    auto base = reinterpret_cast<std::uintptr_t>(address);
    Region region;
    {
        std::lock_guard<std::mutex> lock(memory().mutex);
        auto found = memory().regions.find(base);
        if (found == memory().regions.end()) return otherwise;
        region = found->second;
        if (region.kind != kind) return cudaErrorInvalidValue;
    }
    Status failed = synchronize_for_free(*region.device, region.is_host());
    {
        std::lock_guard<std::mutex> lock(memory().mutex);
        if (!memory().regions.erase(base)) return otherwise;  // another thread was faster
    }
    retire(region);
    return failed;
}

// Whether every page of the range is mapped.
bool is_mapped(std::uintptr_t begin, std::uintptr_t end) {
    unsigned char presence;
    for (std::uintptr_t page = begin / page_nbytes() * page_nbytes(); page < end; page += page_nbytes())
        if (mincore(reinterpret_cast<void*>(page), 1, &presence)) return false;
    return true;
}

}  // namespace

Status allocate_device(void** address, std::size_t nbytes, Device& device) {
    std::size_t room = round_up(nbytes, kAlignment);
    if (room < nbytes || (device.used_nbytes += room) > device.memory_nbytes) {
        if (room >= nbytes) device.used_nbytes -= room;
        return cudaErrorMemoryAllocation;
    }
    Status status = map_region(address, nbytes, device, MemoryKind::kDevice, 0);
    if (status) device.used_nbytes -= room;
    return status;
}

Status allocate_pinned(void** address, std::size_t nbytes, Device& device, unsigned flags) {
    return map_region(address, nbytes, device, MemoryKind::kPinned, flags);
}

Status free_device(void* address) {
    return remove_region(address, MemoryKind::kDevice, cudaErrorInvalidValue);
}

Status free_pinned(void* address) {
    return remove_region(address, MemoryKind::kPinned, cudaErrorInvalidValue);
}

Status unregister_host(void* address) {
    return remove_region(address, MemoryKind::kRegistered, cudaErrorHostMemoryNotRegistered);
}

Status register_host(void* address, std::size_t nbytes, Device& device, unsigned flags) {
    auto base = reinterpret_cast<std::uintptr_t>(address);
    constexpr unsigned kKnown =
        cudaHostRegisterPortable | cudaHostRegisterMapped | cudaHostRegisterIoMemory | cudaHostRegisterReadOnly;
    if (flags & ~kKnown) return cudaErrorInvalidValue;
    if (!address || !nbytes || base + nbytes < base || !is_mapped(base, base + nbytes)) return cudaErrorInvalidValue;
    Memory& all = memory();
    std::lock_guard<std::mutex> lock(all.mutex);
    if (overlaps_locked(base, base + nbytes)) return cudaErrorHostMemoryAlreadyRegistered;
    all.regions[base] = Region{base, nbytes, MemoryKind::kRegistered, &device, flags, ++all.num_made, nullptr, 0};
    return kSuccess;
}

std::optional<Region> find_region(const void* address) {
    std::lock_guard<std::mutex> lock(memory().mutex);
    const Region* region = find_locked(reinterpret_cast<std::uintptr_t>(address));
    return region ? std::optional<Region>(*region) : std::nullopt;
}

Status region_of_range(std::optional<Region>& region, const void* address, std::size_t nbytes) {
    auto begin = reinterpret_cast<std::uintptr_t>(address);
    if (begin + nbytes < begin) return cudaErrorInvalidValue;
    std::lock_guard<std::mutex> lock(memory().mutex);
    if (const Region* found = find_locked(begin)) {
        region = *found;
        return begin + nbytes <= found->end() ? kSuccess : static_cast<Status>(cudaErrorInvalidValue);
    }
    region.reset();
    return address && !overlaps_locked(begin, begin + nbytes) ? kSuccess : static_cast<Status>(cudaErrorInvalidValue);
}

bool is_unknown_memory(std::uintptr_t address) {
    // No process has memory outside these, and small numbers are no addresses.
    if (address < (1 << 16) || address >= std::uintptr_t{1} << 47) return false;
    return !find_region(reinterpret_cast<void*>(address)) && is_mapped(address, address + 1);
}

Status pointer_attributes(cudaPointerAttributes& attributes, const void* address) {
    std::memset(&attributes, 0, sizeof attributes);
    auto* pointer = const_cast<void*>(address);
    std::optional<Region> region = find_region(address);
    attributes.device = region ? region->device->ordinal : -2;
    attributes.hostPointer = pointer;
    if (!region) {
        attributes.type = cudaMemoryTypeUnregistered;
        return kSuccess;
    }
    attributes.devicePointer = pointer;
    attributes.type = region->is_host() ? cudaMemoryTypeHost : cudaMemoryTypeDevice;
    if (attributes.type == cudaMemoryTypeDevice) attributes.hostPointer = nullptr;
    return kSuccess;
}

}  // namespace hostcuda

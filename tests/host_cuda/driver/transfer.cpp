// Copies, fills and host functions: where their memory lies, and when the caller may go on.
#include "transfer.h"

#include <cstring>

#include "capture.h"
#include "memory.h"

namespace hostcuda {
namespace {

enum class Place { kPageable, kPinned, kDevice };

Status place_of(Place& place, const void* address, std::size_t nbytes) {
    std::optional<Region> region;
    HOSTCUDA_TRY(region_of_range(region, address, nbytes));
    place = !region ? Place::kPageable : region->is_host() ? Place::kPinned : Place::kDevice;
    return kSuccess;
}

bool is_host(Place place) { return place == Place::kPageable || place == Place::kPinned; }

struct Places {
    Place dst, src;

    bool are_both_host() const { return is_host(dst) && is_host(src); }
    bool has_pageable() const { return dst == Place::kPageable || src == Place::kPageable; }
};

// What the caller says of a side; CUDA leaves a false word undefined.
bool fits(Place place, bool is_said_host) {
    return is_said_host ? place != Place::kDevice : place != Place::kPageable;
}

Status check(Places& places, const Copy& copy) {
    if (copy.kind < cudaMemcpyHostToHost || copy.kind > cudaMemcpyDefault) return cudaErrorInvalidMemcpyDirection;
    Status status = place_of(places.dst, copy.dst, copy.nbytes);
    if (!status) status = place_of(places.src, copy.src, copy.nbytes);
    if (status) {
        complain("a copy of %zu bytes from %p to %p leaves its memory", copy.nbytes, copy.src, copy.dst);
        return status;
    }
    if (copy.kind != cudaMemcpyDefault) {
        bool is_to_host = copy.kind == cudaMemcpyHostToHost || copy.kind == cudaMemcpyDeviceToHost;
        bool is_from_host = copy.kind == cudaMemcpyHostToHost || copy.kind == cudaMemcpyHostToDevice;
        if (!fits(places.dst, is_to_host) || !fits(places.src, is_from_host)) {
            complain("a copy from %p to %p has direction %d, which its pointers have not", copy.src, copy.dst, copy.kind);
            return cudaErrorInvalidValue;
        }
    }
    auto dst = reinterpret_cast<std::uintptr_t>(copy.dst), src = reinterpret_cast<std::uintptr_t>(copy.src);
    if (dst != src && dst < src + copy.nbytes && src < dst + copy.nbytes) {
        complain("a copy of %zu bytes from %p to %p overlaps itself", copy.nbytes, copy.src, copy.dst);
        return cudaErrorInvalidValue;
    }
    return kSuccess;
}


// Whether the memory is still what it was when the work was queued; in a graph that may be long ago.
Status check_still(Place place, const void* address, std::size_t nbytes) {
    Place now;
    return place_of(now, address, nbytes) || now != place ? cudaErrorIllegalAddress : cudaSuccess;
}

Action as_action(const Copy& copy, Places places) {
    Action action;
    action.kind = ActionKind::kCopy;
    action.label = "copy of " + std::to_string(copy.nbytes) + " bytes";
    action.may_fault = true;
    action.run = [copy, places]() -> Status {
        HOSTCUDA_TRY(check_still(places.dst, copy.dst, copy.nbytes));
        HOSTCUDA_TRY(check_still(places.src, copy.src, copy.nbytes));
        std::memmove(copy.dst, copy.src, copy.nbytes);
        return kSuccess;
    };
    return action;
}

// Of pageable memory: what the source holds now is what arrives, whatever becomes of it.
Action as_staged_action(Copy copy, Places places) {
    auto* source = static_cast<const char*>(copy.src);
    auto staged = std::make_shared<std::vector<char>>(source, source + copy.nbytes);
    copy.src = staged->data();
    Action action = as_action(copy, places);
    action.run = [copy, places, staged]() -> Status {
        HOSTCUDA_TRY(check_still(places.dst, copy.dst, copy.nbytes));
        std::memmove(copy.dst, copy.src, copy.nbytes);
        return kSuccess;
    };
    return action;
}

Status legacy(StreamPtr& stream) {
    {
        std::lock_guard<std::mutex> lock(state_mutex());
        HOSTCUDA_TRY(check_unsafe_call());
    }
    return find_stream(stream, cudaStreamLegacy);
}

Status check(Place& place, const Fill& fill) {
    Status status = place_of(place, fill.dst, fill.nbytes);
    if (!status && place == Place::kPageable) status = cudaErrorInvalidValue;
    if (status) complain("a fill of %zu bytes at %p leaves its memory", fill.nbytes, fill.dst);
    return status;
}

Action as_action(const Fill& fill, Place place) {
    Action action;
    action.kind = ActionKind::kFill;
    action.label = "fill of " + std::to_string(fill.nbytes) + " bytes";
    action.may_fault = true;
    action.run = [fill, place]() -> Status {
        HOSTCUDA_TRY(check_still(place, fill.dst, fill.nbytes));
        std::memset(fill.dst, fill.value, fill.nbytes);
        return kSuccess;
    };
    return action;
}

}  // namespace

Status copy_async(const Copy& copy, Stream& stream) {
    if (!copy.nbytes) return stream.device.failure;
    Places places;
    HOSTCUDA_TRY(check(places, copy));
    bool is_captured;
    {
        std::lock_guard<std::mutex> lock(state_mutex());
        is_captured = static_cast<bool>(stream.capture);
        if (is_captured && places.has_pageable()) {
            complain("a copy between %p and %p, one of which is not pinned, is captured", copy.src, copy.dst);
            return check_not_captured(stream);
        }
    }
    if (is_captured) return submit(stream, as_action(copy, places));
    if (places.are_both_host() || places.dst == Place::kPageable) return submit_and_wait(stream, as_action(copy, places));
    if (places.src == Place::kPageable) return submit(stream, as_staged_action(copy, places));
    return submit(stream, as_action(copy, places));
}

Status copy_now(const Copy& copy) {
    StreamPtr stream;
    HOSTCUDA_TRY(legacy(stream));
    if (!copy.nbytes) return stream->device.failure;
    Places places;
    HOSTCUDA_TRY(check(places, copy));
    if (!is_host(places.dst) && places.src == Place::kPageable) {
        HOSTCUDA_TRY(synchronize_stream(*stream));
        return submit(*stream, as_staged_action(copy, places));
    }
    if (!is_host(places.dst) && !is_host(places.src)) return submit(*stream, as_action(copy, places));
    return submit_and_wait(*stream, as_action(copy, places));
}

Status fill_async(const Fill& fill, Stream& stream) {
    if (!fill.nbytes) return stream.device.failure;
    Place place;
    HOSTCUDA_TRY(check(place, fill));
    return submit(stream, as_action(fill, place));
}

Status fill_now(const Fill& fill) {
    StreamPtr stream;
    HOSTCUDA_TRY(legacy(stream));
    if (!fill.nbytes) return stream->device.failure;
    Place place;
    HOSTCUDA_TRY(check(place, fill));
    return place == Place::kPinned ? submit_and_wait(*stream, as_action(fill, place)) : submit(*stream, as_action(fill, place));
}

Status call_host(Stream& stream, cudaHostFn_t function, void* argument) {
    if (!function) return cudaErrorInvalidValue;
    Action action;
    action.kind = ActionKind::kHost;
    action.label = "host function";
    action.run = [function, argument] {
        this_thread().is_in_host_function = true;
        function(argument);
        this_thread().is_in_host_function = false;
        return kSuccess;
    };
    return submit(stream, std::move(action));
}

}  // namespace hostcuda

// Events: marks in streams.
#pragma once

#include <memory>
#include <vector>

#include "stream.h"

namespace hostcuda {

struct Event {
    Event(Device& device, unsigned flags) : device(device), flags(flags) {}

    Device& device;
    const unsigned flags;

    // Under state_mutex().
    CompletionPtr last;  // of the latest record; null before the first
    // Of the latest record if it was in a capture, over or not: then the event is not for waiting on the host.
    std::shared_ptr<Capture> capture;
    std::vector<Node*> front;

    bool is_timed() const { return !(flags & cudaEventDisableTiming); }
};

using EventPtr = std::shared_ptr<Event>;

Status create_event(cudaEvent_t& handle, Device& device, unsigned flags);
Status destroy_event(cudaEvent_t handle);
Status find_event(EventPtr& event, cudaEvent_t handle);

Status record_event(const EventPtr& event, Stream& stream, unsigned flags);
Status wait_event(const EventPtr& event, Stream& stream, unsigned flags);
Status query_event(Event& event);
Status synchronize_event(Event& event);
Status elapsed_time(float& milliseconds, Event& start, Event& stop);

}  // namespace hostcuda

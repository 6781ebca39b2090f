// One thing that a stream or a graph does.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "status.h"

namespace hostcuda {

struct Device;
struct Event;

enum class ActionKind { kKernel, kCopy, kFill, kHost, kEventRecord, kEventWait, kMemoryOperation, kEmpty, kGraph };

struct Action {
    ActionKind kind = ActionKind::kEmpty;
    std::string label;
    // May run many times, as a graph's node; what is not success fails the device.
    std::function<Status()> run;
    // A bad access in it is the device's failure, not the process's.
    bool may_fault = false;
    bool runs_after_failure = false;
    // Of the two kinds of event actions.
    std::shared_ptr<Event> event;
};

// Runs it unless the device has failed; makes the device fail where it does.
void perform(const Action& action, Device& device);

}  // namespace hostcuda

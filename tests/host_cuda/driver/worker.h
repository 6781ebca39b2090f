// Threads that do the devices' work. They are never joined: a kernel that does not end must not keep the process.
#pragma once

#include <functional>
#include <string>

namespace hostcuda {

void start_thread(const std::string& name, std::function<void()> run);

// Runs it on an idle helper thread, or on a new one: it always gets its own at once.
void run_on_helper(std::function<void()> run);

}  // namespace hostcuda

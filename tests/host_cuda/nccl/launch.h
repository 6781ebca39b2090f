// From calls to work on streams: what belongs together, connections that it needs, and its place in a queue or a
// capture.

#pragma once

#include <cuda_runtime_api.h>

#include <memory>
#include <vector>

#include "comm.h"

namespace host_nccl {

// What one call has for a communicator.
struct Issue {
    std::shared_ptr<Communicator> communicator;
    cudaStream_t stream;
    std::vector<Collective> collectives;
    std::vector<Message> messages;
};

// Makes what belongs to one communicator one piece of work, and puts each on its stream. Returns once the others have
// come to the first work with this rank as well; or, of a communicator that does not block, ncclInProgress at once.
ncclResult_t launch_all(std::vector<Issue> issues);

}  // namespace host_nccl

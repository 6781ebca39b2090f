// The runtime's functions of captures and graphs.
#include "capture.h"
#include "runtime_call.h"

using namespace hostcuda;

namespace {

template <typename Body>
cudaError_t runtime_graph(cudaGraph_t handle, Body body, const char* function = __builtin_FUNCTION()) {
    auto on_device = [&](Device&) -> Status {
        GraphPtr graph = graphs().find(handle);
        if (!graph) return cudaErrorInvalidValue;
        std::lock_guard<std::mutex> lock(state_mutex());
        return body(*graph);
    };
    return runtime(on_device, function);
}

}  // namespace

extern "C" {

cudaError_t cudaStreamBeginCapture(cudaStream_t handle, cudaStreamCaptureMode mode) {
    return runtime_stream(handle, [&](Stream& stream) { return begin_capture(stream, mode); });
}

cudaError_t cudaStreamEndCapture(cudaStream_t handle, cudaGraph_t* graph) {
    return runtime_stream(handle, [&](Stream& stream) -> Status {
        return graph ? end_capture(*graph, stream) : static_cast<Status>(cudaErrorInvalidValue);
    });
}

cudaError_t cudaStreamIsCapturing(cudaStream_t handle, cudaStreamCaptureStatus* status) {
    return runtime_stream(handle, [&](Stream& stream) -> Status {
        return status ? is_capturing(*status, stream) : static_cast<Status>(cudaErrorInvalidValue);
    });
}

cudaError_t cudaStreamGetCaptureInfo(cudaStream_t handle, cudaStreamCaptureStatus* status, unsigned long long* id,
                                     cudaGraph_t* graph, const cudaGraphNode_t** dependencies,
                                     const cudaGraphEdgeData** edges, size_t* num_dependencies) {
    return runtime_stream(handle, [&](Stream& stream) -> Status {
        if (!status) return cudaErrorInvalidValue;
        HOSTCUDA_TRY(is_capturing(*status, stream));
        std::lock_guard<std::mutex> lock(state_mutex());
        if (!stream.capture) return kSuccess;
        if (id) *id = stream.capture->id;
        if (!stream.capture->is_valid) return kSuccess;
        if (graph) *graph = stream.capture->graph_handle;
        if (dependencies) *dependencies = reinterpret_cast<const cudaGraphNode_t*>(stream.front.data());
        if (edges) *edges = nullptr;
        if (num_dependencies) *num_dependencies = stream.front.size();
        return kSuccess;
    });
}

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
    return runtime_plain([&] { return exchange_capture_mode(mode); });
}

cudaError_t cudaGraphDestroy(cudaGraph_t handle) {
    return runtime([&](Device&) -> Status { return graphs().remove(handle) ? cudaSuccess : cudaErrorInvalidValue; });
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* handle, cudaGraph_t graph_handle, unsigned long long flags) {
    return runtime_graph(graph_handle, [&](Graph& graph) -> Status {
        constexpr unsigned long long kKnown = cudaGraphInstantiateFlagAutoFreeOnLaunch | cudaGraphInstantiateFlagUpload |
                                              cudaGraphInstantiateFlagUseNodePriority;
        if (flags & ~kKnown) return cudaErrorNotSupported;
        return put(handle, reinterpret_cast<cudaGraphExec_t>(graph_execs().add(std::make_shared<GraphExec>(graph))));
    });
}

cudaError_t cudaGraphUpload(cudaGraphExec_t handle, cudaStream_t stream_handle) {
    return runtime_stream(stream_handle, [&](Stream& stream) -> Status {
        GraphExecPtr exec = graph_execs().find(handle);
        return exec ? upload_graph(exec, stream) : static_cast<Status>(cudaErrorInvalidValue);
    });
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t handle, cudaStream_t stream_handle) {
    return runtime_stream(stream_handle, [&](Stream& stream) -> Status {
        GraphExecPtr exec = graph_execs().find(handle);
        return exec ? launch_graph(exec, stream) : static_cast<Status>(cudaErrorInvalidValue);
    });
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t handle) {
    // A launch under way keeps it until it is done.
    return runtime([&](Device&) -> Status { return graph_execs().remove(handle) ? cudaSuccess : cudaErrorInvalidValue; });
}

cudaError_t cudaUserObjectCreate(cudaUserObject_t* handle, void* pointer, cudaHostFn_t destroy, unsigned count,
                                 unsigned flags) {
    return runtime([&](Device&) -> Status {
        if (!destroy || count != 1 || flags != cudaUserObjectNoDestructorSync) return cudaErrorInvalidValue;
        auto object = std::make_shared<UserObject>();
        object->pointer = pointer;
        object->destroy = destroy;
        return put(handle, reinterpret_cast<cudaUserObject_t>(user_objects().add(std::move(object))));
    });
}

cudaError_t cudaGraphRetainUserObject(cudaGraph_t handle, cudaUserObject_t object_handle, unsigned count, unsigned flags) {
    return runtime_graph(handle, [&](Graph& graph) -> Status {
        std::shared_ptr<UserObject> object = user_objects().find(object_handle);
        if (!object || count != 1 || flags & ~unsigned(cudaGraphUserObjectMove)) return cudaErrorInvalidValue;
        graph.user_objects.push_back(std::move(object));
        if (flags & cudaGraphUserObjectMove) user_objects().remove(object_handle);
        return kSuccess;
    });
}

}  // extern "C"

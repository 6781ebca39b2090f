// Captures: their beginning and end, and what breaks them.
#include "capture.h"

#include <algorithm>
#include <set>

namespace hostcuda {
namespace {

// Under state_mutex(): those that have begun and not ended.
std::vector<std::shared_ptr<Capture>>& captures() {
    static auto& all = *new std::vector<std::shared_ptr<Capture>>;
    return all;
}

Status found_none(bool has_found, Status otherwise) { return has_found ? otherwise : kSuccess; }

// Whether a stream of the device is captured that the legacy stream would wait for.
bool invalidate_blocking(Device& device, bool is_to_invalidate) {
    bool has_found = false;
    for (const auto& capture : captures())
        for (const StreamPtr& stream : capture->streams) {
            if (&stream->device != &device || !stream->is_blocking()) continue;
            has_found = true;
            if (is_to_invalidate) capture->invalidate();
        }
    return has_found;
}

// Whether all the graph's leaves are among what the origin goes on after.
bool is_joined(const Capture& capture) {
    for (Node* leaf : capture.graph->leaves()) {
        const auto& front = capture.origin->front;
        if (std::find(front.begin(), front.end(), leaf) == front.end()) return false;
    }
    return true;
}

}  // namespace

void Capture::join(Stream& stream, const std::vector<Node*>& joined) {
    if (!stream.capture) {
        for (const auto& capture : captures())
            if (capture.get() == this) stream.capture = capture;
        streams.push_back(stream.shared_from_this());
    }
    for (Node* node : joined)
        if (std::find(stream.front.begin(), stream.front.end(), node) == stream.front.end())
            stream.front.push_back(node);
}

void Capture::end() {
    is_over = true;
    auto& all = captures();
    auto self = std::find_if(all.begin(), all.end(), [&](const auto& each) { return each.get() == this; });
    std::shared_ptr<Capture> kept = *self;
    all.erase(self);
    for (const StreamPtr& stream : streams) {
        stream->capture.reset();
        stream->front.clear();
    }
    streams.clear();
}

Status begin_capture(Stream& stream, cudaStreamCaptureMode mode) {
    static unsigned long long num_begun = 0;
    if (mode < cudaStreamCaptureModeGlobal || mode > cudaStreamCaptureModeRelaxed) return cudaErrorInvalidValue;
    std::lock_guard<std::mutex> lock(state_mutex());
    if (Status failure = stream.device.failure) return failure;
    if (stream.is_legacy) return cudaErrorStreamCaptureUnsupported;
    if (stream.capture) {
        stream.capture->invalidate();
        return cudaErrorIllegalState;
    }
    auto capture = std::make_shared<Capture>();
    capture->id = ++num_begun;
    capture->graph = std::make_shared<Graph>();
    capture->graph_handle = reinterpret_cast<cudaGraph_t>(graphs().add(capture->graph));
    capture->origin = &stream;
    capture->thread = std::this_thread::get_id();
    capture->mode = mode;
    capture->streams.push_back(stream.shared_from_this());
    captures().push_back(capture);
    stream.capture = capture;
    return kSuccess;
}

Status end_capture(cudaGraph_t& graph, Stream& stream) {
    graph = nullptr;
    // Those of a graph that comes to nothing go after the lock: they call the program.
    std::vector<std::shared_ptr<UserObject>> released;
    std::lock_guard<std::mutex> lock(state_mutex());
    std::shared_ptr<Capture> capture = stream.capture;
    if (!capture) return cudaErrorIllegalState;
    if (capture->mode != cudaStreamCaptureModeRelaxed && capture->thread != std::this_thread::get_id())
        return cudaErrorStreamCaptureWrongThread;
    if (capture->origin != &stream) {
        capture->invalidate();
        return cudaErrorStreamCaptureUnmatched;
    }
    Status status = !capture->is_valid    ? cudaErrorStreamCaptureInvalidated
                    : !is_joined(*capture) ? cudaErrorStreamCaptureUnjoined
                                           : cudaSuccess;
    capture->end();
    if (status) {
        graphs().remove(capture->graph_handle);
        released.swap(capture->graph->user_objects);
    } else {
        graph = capture->graph_handle;
    }
    return status;
}

Status exchange_capture_mode(cudaStreamCaptureMode* mode) {
    if (!mode || *mode < cudaStreamCaptureModeGlobal || *mode > cudaStreamCaptureModeRelaxed)
        return cudaErrorInvalidValue;
    std::swap(*mode, this_thread().capture_mode);
    return kSuccess;
}

Status is_capturing(cudaStreamCaptureStatus& status, Stream& stream) {
    std::lock_guard<std::mutex> lock(state_mutex());
    status = cudaStreamCaptureStatusNone;
    // Told only: this question spoils no capture.
    if (stream.is_legacy && invalidate_blocking(stream.device, false)) return cudaErrorStreamCaptureImplicit;
    if (stream.capture)
        status = stream.capture->is_valid ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusInvalidated;
    return kSuccess;
}

Status add_captured(Stream& stream, Action action) {
    Capture& capture = *stream.capture;
    if (!capture.is_valid) return cudaErrorStreamCaptureInvalidated;
    Node* node = capture.graph->add(std::move(action), stream.device, stream.front);
    stream.front = {node};
    return kSuccess;
}

Status check_not_captured(Stream& stream) {
    if (!stream.capture) return kSuccess;
    bool was_valid = stream.capture->is_valid;
    stream.capture->invalidate();
    return was_valid ? cudaErrorStreamCaptureUnsupported : cudaErrorStreamCaptureInvalidated;
}

Status check_legacy_use(Stream& stream) {
    return found_none(stream.is_legacy && invalidate_blocking(stream.device, true), cudaErrorStreamCaptureImplicit);
}

Status check_device_not_captured(Device& device) {
    bool has_found = false;
    for (const auto& capture : captures())
        for (const StreamPtr& stream : capture->streams)
            if (&stream->device == &device) {
                has_found = true;
                capture->invalidate();
            }
    return found_none(has_found, cudaErrorStreamCaptureUnsupported);
}

Status check_unsafe_call() {
    cudaStreamCaptureMode own = this_thread().capture_mode;
    if (own == cudaStreamCaptureModeRelaxed) return kSuccess;
    bool has_found = false;
    for (const auto& capture : captures()) {
        bool is_here = capture->thread == std::this_thread::get_id();
        bool is_prohibiting = is_here ? capture->mode != cudaStreamCaptureModeRelaxed
                                      : capture->mode == cudaStreamCaptureModeGlobal &&
                                            own == cudaStreamCaptureModeGlobal;
        if (!is_prohibiting) continue;
        has_found = true;
        capture->invalidate();
    }
    return found_none(has_found, cudaErrorStreamCaptureUnsupported);
}

Status check_unsafe_call_unlocked() {
    std::lock_guard<std::mutex> lock(state_mutex());
    return check_unsafe_call();
}

}  // namespace hostcuda

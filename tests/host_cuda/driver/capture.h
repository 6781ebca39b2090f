// Stream capture: what streams are given becomes a graph instead of running.
#pragma once

#include <thread>

#include "graph.h"

namespace hostcuda {

// All of it under state_mutex().
struct Capture {
    unsigned long long id;
    GraphPtr graph;
    cudaGraph_t graph_handle;
    Stream* origin;
    std::thread::id thread;
    cudaStreamCaptureMode mode;
    std::vector<StreamPtr> streams;  // the origin first
    bool is_valid = true;
    bool is_over = false;

    void invalidate() { is_valid = false; }
    // From now on the stream is captured too, and goes on after these nodes as well.
    void join(Stream& stream, const std::vector<Node*>& front);
    void end();
};

Status begin_capture(Stream& stream, cudaStreamCaptureMode mode);
Status end_capture(cudaGraph_t& graph, Stream& stream);
// Gives the thread this mode, and the former one back.
Status exchange_capture_mode(cudaStreamCaptureMode* mode);
Status is_capturing(cudaStreamCaptureStatus& status, Stream& stream);

// What follows is for the caller that holds state_mutex(). A check that fails makes the captures it is about invalid.

Status add_captured(Stream& stream, Action action);
// The stream is neither waited for nor queried while it is captured.
Status check_not_captured(Stream& stream);
// The legacy stream is not used while a stream that it waits for is captured.
Status check_legacy_use(Stream& stream);
Status check_device_not_captured(Device& device);
// Calls that may wait for something behind the caller's back are not made during a capture, by the capture's mode.
Status check_unsafe_call();

// The same for a caller without the lock.
Status check_unsafe_call_unlocked();

}  // namespace hostcuda

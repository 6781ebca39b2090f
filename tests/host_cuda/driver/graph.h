// Graphs, and their executable forms.
#pragma once

#include <map>
#include <memory>
#include <vector>

#include "event.h"

namespace hostcuda {

struct Node {
    Action action;
    Device* device;
    std::vector<Node*> dependencies;
    int index;  // of the graph, in the order of making: dependencies come first

};

// An object of the program that lives as long as the graphs that hold it.
struct UserObject {
    void* pointer;
    cudaHostFn_t destroy;
    ~UserObject() { destroy(pointer); }
};

struct Graph {
    std::vector<std::unique_ptr<Node>> nodes;
    std::vector<std::shared_ptr<UserObject>> user_objects;

    Node* add(Action action, Device& device, std::vector<Node*> dependencies);
    // The nodes that no other comes after.
    std::vector<Node*> leaves() const;
};

using GraphPtr = std::shared_ptr<Graph>;

// The nodes of a graph as chains: in each, a node depends on the one before, so that what is independent is apart.
struct GraphExec {
    explicit GraphExec(const Graph& graph);

    std::vector<Node> nodes;
    std::vector<std::vector<int>> chains;
    std::vector<std::shared_ptr<UserObject>> user_objects;
    CompletionPtr last_launch;  // under state_mutex()
};

using GraphExecPtr = std::shared_ptr<GraphExec>;

Registry<Graph>& graphs();
Registry<GraphExec>& graph_execs();
Registry<UserObject>& user_objects();

// On a captured stream the launch becomes a node.
Status launch_graph(const GraphExecPtr& exec, Stream& stream);
Status upload_graph(const GraphExecPtr& exec, Stream& stream);

}  // namespace hostcuda

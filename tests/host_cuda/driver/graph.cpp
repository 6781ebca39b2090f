// Launches of graphs: chains of nodes, each run by a thread.
#include "graph.h"

#include <algorithm>
#include <cstdio>

#include "capture.h"
#include "worker.h"

namespace hostcuda {
namespace {

// What one launch of a graph has of its own.
struct Launch {
    GraphExecPtr exec;
    std::vector<CompletionPtr> done;  // by node
    std::map<int, CompletionPtr> records;
    std::map<int, CompletionPtr> waits;
};

using LaunchPtr = std::shared_ptr<Launch>;

// Under the lock: from now on the events that the graph records mean this launch.
LaunchPtr prepare(const GraphExecPtr& exec) {
    auto launch = std::make_shared<Launch>();
    launch->exec = exec;
    for (const Node& node : exec->nodes) {
        launch->done.push_back(std::make_shared<Completion>());
        if (node.action.kind == ActionKind::kEventWait) launch->waits[node.index] = node.action.event->last;
        if (node.action.kind != ActionKind::kEventRecord) continue;
        Event& event = *node.action.event;
        launch->records[node.index] = event.last = std::make_shared<Completion>();
        event.capture.reset();
        event.front.clear();
    }
    return launch;
}

void run_node(Launch& launch, const Node& node) {
    for (const Node* dependency : node.dependencies) launch.done[dependency->index]->wait();
    auto wait = launch.waits.find(node.index);
    if (wait != launch.waits.end() && wait->second) wait->second->wait();
    perform(node.action, *node.device);
    auto record = launch.records.find(node.index);
    if (record != launch.records.end()) record->second->finish();
    launch.done[node.index]->finish();
}

void run_chain(Launch& launch, const std::vector<int>& chain) {
    for (int index : chain) run_node(launch, launch.exec->nodes[index]);
}

Status run_launch(const LaunchPtr& launch) {
    const auto& chains = launch->exec->chains;
    for (std::size_t other = 1; other < chains.size(); ++other)
        run_on_helper([launch, other] { run_chain(*launch, launch->exec->chains[other]); });
    if (!chains.empty()) run_chain(*launch, chains[0]);
    for (const CompletionPtr& done : launch->done) done->wait();
    return kSuccess;
}

}  // namespace

Node* Graph::add(Action action, Device& device, std::vector<Node*> dependencies) {
    int index = static_cast<int>(nodes.size());
    nodes.push_back(std::make_unique<Node>(Node{std::move(action), &device, std::move(dependencies), index}));
    return nodes.back().get();
}

std::vector<Node*> Graph::leaves() const {
    std::vector<bool> is_leaf(nodes.size(), true);
    for (const auto& node : nodes)
        for (Node* dependency : node->dependencies) is_leaf[dependency->index] = false;
    std::vector<Node*> found;
    for (const auto& node : nodes)
        if (is_leaf[node->index]) found.push_back(node.get());
    return found;
}

GraphExec::GraphExec(const Graph& graph) : user_objects(graph.user_objects) {
    for (const auto& node : graph.nodes) nodes.push_back(*node);
    std::vector<int> chain_ending_at(nodes.size(), -1);
    for (Node& node : nodes) {
        int chain = -1;
        for (Node*& dependency : node.dependencies) {
            dependency = &nodes[dependency->index];
            if (chain < 0) std::swap(chain, chain_ending_at[dependency->index]);
        }
        if (chain < 0) {
            chain = static_cast<int>(chains.size());
            chains.emplace_back();
        }
        chains[chain].push_back(node.index);
        chain_ending_at[node.index] = chain;
    }
}

Registry<Graph>& graphs() {
    static Registry<Graph>& all = *new Registry<Graph>(3);
    return all;
}

Registry<GraphExec>& graph_execs() {
    static Registry<GraphExec>& all = *new Registry<GraphExec>(4);
    return all;
}

Registry<UserObject>& user_objects() {
    static Registry<UserObject>& all = *new Registry<UserObject>(5);
    return all;
}

Status launch_graph(const GraphExecPtr& exec, Stream& stream) {
    std::lock_guard<std::mutex> lock(state_mutex());
    if (Status failure = stream.device.failure) return failure;
    Action action;
    action.kind = ActionKind::kGraph;
    action.label = "graph";
    if (stream.capture) {
        action.run = [exec] {
            LaunchPtr launch;
            {
                std::lock_guard<std::mutex> lock(state_mutex());
                launch = prepare(exec);
            }
            return run_launch(launch);
        };
        return add_captured(stream, std::move(action));
    }
    HOSTCUDA_TRY(check_legacy_use(stream));
    LaunchPtr launch = prepare(exec);
    action.run = [launch] { return run_launch(launch); };
    // Launches of one executable graph never overlap.
    std::vector<CompletionPtr> after;
    if (exec->last_launch) after.push_back(exec->last_launch);
    exec->last_launch = stream.enqueue(std::move(action), std::move(after));
    return kSuccess;
}

Status upload_graph(const GraphExecPtr&, Stream& stream) {
    std::lock_guard<std::mutex> lock(state_mutex());
    HOSTCUDA_TRY(check_not_captured(stream));
    HOSTCUDA_TRY(check_legacy_use(stream));
    return stream.device.failure;
}

}  // namespace hostcuda

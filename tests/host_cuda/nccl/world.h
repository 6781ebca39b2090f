// What the ranks of a communicator share: a table in shared memory, and how a rank waits for what another writes there.
//
// The table is an anonymous file of the process that made the unique id; the others open it through /proc, so nothing
// is left behind however the ranks end. Data does not pass through it: a rank reads another's memory in place.

#pragma once

#include "nccl_api.h"

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace host_nccl {

constexpr int kMaxRanks = 64;

enum class Presence : uint32_t { kAbsent, kPresent, kDestroyed, kAborted };

// A message of one direction of a pair: the sender posts it, the receiver copies it and says so.
enum class BoxState : uint32_t { kEmpty, kPosted, kTaken, kRefused };

struct alignas(64) Box {
    std::atomic<BoxState> state;
    uint64_t address, nbytes;
    uint64_t expected_nbytes;  // by a receiver that refuses
};

// An all-reduce as one rank called it. `scratch` is where that rank puts what it has reduced.
struct Call {
    uint32_t datatype, op;
    uint64_t count, source, scratch;
};

struct alignas(64) Seat {
    std::atomic<uint32_t> claimed;
    std::atomic<Presence> presence;
    int32_t pid;
    uint64_t started;  // of the process, in the kernel's ticks: its number may be given to another
    int32_t version;
    uint64_t host;
    char device[32];
    uint32_t shares_device;
    // What the other ranks ring after they have written something that this one may wait for.
    std::atomic<uint32_t> bell;
    // How many meetings of the host calls, and of the work on streams, this rank has come to.
    std::atomic<uint64_t> host_phase, device_phase;
    Call call;
    // Connections that this rank has begun: to send to and receive from each other one, and of all-reduces by size.
    std::atomic<uint8_t> sends_to[kMaxRanks], receives_from[kMaxRanks];
    std::atomic<uint8_t> collectives[64];
    // Smaller communicators that were made of this one, by its first survivor, and the id of the last.
    std::atomic<uint32_t> children;
    ncclUniqueId child;
    // Larger ones, by the rank that has asked for the id of the last.
    std::atomic<uint32_t> growths;
    ncclUniqueId growth;
};

struct Table {
    uint64_t nonce;
    int32_t maker_pid;
    uint64_t maker_started;
    std::atomic<int32_t> world_size;
    std::atomic<int32_t> broken;  // an ncclResult_t: the start-up failed for all
    Seat seats[kMaxRanks];
    Box boxes[kMaxRanks][kMaxRanks];  // [sender][receiver]
};

enum class Waited { kReady, kAborted, kLost };

// A rank's place at the table.
class World {
public:
    // Makes a table, and the id by which ranks find it.
    static ncclResult_t make_id(ncclUniqueId* id);

    // Opens the table and takes the seat of `rank`; returns once all ranks have done so and agree on what they must, or
    // `aborted` is set (null: never).
    static ncclResult_t join(const ncclUniqueId& id, int rank, int world_size, int version, uint64_t host,
                             const std::string& device, bool shares_device, const std::atomic<bool>* aborted,
                             std::unique_ptr<World>* world);
    ~World();
    World(const World&) = delete;

    int rank() const { return rank_; }
    int size() const { return size_; }
    Seat& mine() { return table_->seats[rank_]; }
    Seat& seat(int rank) { return table_->seats[rank]; }
    Box& box(int sender, int receiver) { return table_->boxes[sender][receiver]; }
    uint64_t all() const { return size_ == 64 ? ~uint64_t(0) : (uint64_t(1) << size_) - 1; }
    uint64_t others() const { return all() & ~(uint64_t(1) << rank_); }

    void ring(int rank);
    void ring_all();
    void leave(Presence how);

    // Returns once `ready()`, or `aborted` is set, or one of the ranks in the bit mask `needed()` is gone (`*lost`).
    Waited wait(const std::function<bool()>& ready, const std::function<uint64_t()>& needed,
                const std::atomic<bool>* aborted, int* lost);

    // Waits until every rank has come to this one's next meeting of `phase`.
    Waited meet(std::atomic<uint64_t> Seat::* phase, const std::atomic<bool>* aborted, int* lost);

    // The first of `ranks` that has aborted or destroyed its communicator or whose process has ended, or -1. `*how`
    // says it.
    int find_lost(uint64_t ranks, bool asks_processes, std::string* how = nullptr);

private:
    World(Table* table, int rank, int size) : table_(table), rank_(rank), size_(size) {}
    ncclResult_t check_seats();

    Table* table_;
    int rank_, size_;
};

// Copies from the memory of process `pid`; false with errno set.
bool read_memory(int pid, void* target, uint64_t source, uint64_t nbytes);

}  // namespace host_nccl

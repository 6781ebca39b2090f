// The table that ranks share: start-up, waiting, and who has gone.
#include "world.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include <climits>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <map>
#include <mutex>
#include <sstream>

#include "log.h"

namespace host_nccl {
namespace {

// How often who waits looks whether the others are still there.
constexpr long kLookNs = 50'000'000;
constexpr uint64_t kMagic = 0x6c63636e74736f68;  // "hostnccl"

struct Id {
    uint64_t magic, nonce;
    int32_t pid, descriptor;
};
static_assert(sizeof(Id) <= sizeof(ncclUniqueId), "an id holds the way to the table");

// The files of the ids made here that are not all used up.
std::mutex tables_lock;
std::map<uint64_t, int>& made_tables() {
    static auto* tables = new std::map<uint64_t, int>;
    return *tables;
}

// When process `pid` was started; 0 if it has ended.
uint64_t start_of(int pid) {
    std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
    std::string text((std::istreambuf_iterator<char>(file)), {});
    size_t at = text.rfind(')');
    if (at == std::string::npos) return 0;
    std::istringstream fields(text.substr(at + 1));
    std::string state, skipped;
    fields >> state;
    if (state == "Z" || state == "X") return 0;
    for (int field = 4; field < 22; ++field) fields >> skipped;
    uint64_t started = 0;
    fields >> started;
    return started;
}

void futex_wait(std::atomic<uint32_t>* word, uint32_t seen) {
    timespec limit{0, kLookNs};
    syscall(SYS_futex, reinterpret_cast<uint32_t*>(word), FUTEX_WAIT, seen, &limit, nullptr, 0);
}

void futex_wake(std::atomic<uint32_t>* word) {
    syscall(SYS_futex, reinterpret_cast<uint32_t*>(word), FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

ncclResult_t open_table(const ncclUniqueId& id, Table** table) {
    Id way;
    memcpy(&way, id.internal, sizeof(way));
    if (way.magic != kMagic) return refuse(ncclInvalidArgument, "the unique id is not one of ncclGetUniqueId");
    std::string path = "/proc/" + std::to_string(way.pid) + "/fd/" + std::to_string(way.descriptor);
    int file = open(path.c_str(), O_RDWR | O_CLOEXEC);
    if (file < 0)
        return refuse(ncclSystemError, "process %d, which made the unique id, has ended or the id was used before: %s",
                      way.pid, strerror(errno));
    off_t nbytes = lseek(file, 0, SEEK_END);
    void* address = MAP_FAILED;
    if (nbytes == off_t(sizeof(Table)))
        address = mmap(nullptr, sizeof(Table), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    if (address == MAP_FAILED) return refuse(ncclSystemError, "the unique id was used before, or is of another build");
    *table = static_cast<Table*>(address);
    if ((*table)->nonce != way.nonce) {
        munmap(address, sizeof(Table));
        return refuse(ncclInvalidUsage, "the unique id was used before");
    }
    return ncclSuccess;
}

void forget_table(uint64_t nonce) {
    std::lock_guard<std::mutex> hold(tables_lock);
    auto found = made_tables().find(nonce);
    if (found == made_tables().end()) return;
    close(found->second);
    made_tables().erase(found);
}

}  // namespace

ncclResult_t World::make_id(ncclUniqueId* id) {
    int file = memfd_create("host_nccl", MFD_CLOEXEC);
    if (file < 0 || ftruncate(file, sizeof(Table)) != 0)
        return refuse(ncclSystemError, "no shared memory for a communicator: %s", strerror(errno));
    void* address = mmap(nullptr, sizeof(Table), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    // The rest of the id is noise: every byte of it must come through.
    if (address == MAP_FAILED || getrandom(id->internal, sizeof(id->internal), 0) != ssize_t(sizeof(id->internal))) {
        close(file);
        return refuse(ncclSystemError, "no shared memory for a communicator: %s", strerror(errno));
    }
    auto* table = static_cast<Table*>(address);
    Id way{kMagic, 0, getpid(), file};
    memcpy(&way.nonce, id->internal + 64, sizeof(way.nonce));
    memcpy(id->internal, &way, sizeof(way));
    table->nonce = way.nonce;
    table->maker_pid = way.pid;
    table->maker_started = start_of(way.pid);
    munmap(address, sizeof(Table));
    std::lock_guard<std::mutex> hold(tables_lock);
    made_tables()[way.nonce] = file;
    return ncclSuccess;
}

ncclResult_t World::join(const ncclUniqueId& id, int rank, int world_size, int version, uint64_t host,
                         const std::string& device, bool shares_device, const std::atomic<bool>* aborted,
                         std::unique_ptr<World>* world) {
    // Who reads this process's memory may be no descendant of it: Yama asks for leave.
    prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
    Table* table = nullptr;
    ncclResult_t result = open_table(id, &table);
    if (result != ncclSuccess) return result;
    world->reset(new World(table, rank, world_size));

    int32_t size = 0;
    if (!table->world_size.compare_exchange_strong(size, world_size) && size != world_size) {
        table->broken = ncclInvalidUsage;
        for (int other = 0; other < kMaxRanks; ++other) (*world)->ring(other);
        return refuse(ncclInvalidUsage, "rank %d comes to %d ranks, another one to %d", rank, world_size, size);
    }
    Seat& mine = (*world)->mine();
    if (mine.claimed.exchange(1)) {
        table->broken = ncclInvalidUsage;
        (*world)->ring_all();
        return refuse(ncclInvalidUsage, "rank %d has come already", rank);
    }
    mine.pid = getpid();
    mine.started = start_of(mine.pid);
    mine.version = version;
    mine.host = host;
    snprintf(mine.device, sizeof(mine.device), "%s", device.c_str());
    mine.shares_device = shares_device;
    mine.presence = Presence::kPresent;
    (*world)->ring_all();

    int lost = -1;
    bool maker_gone = false;
    auto ready = [&] {
        if (table->broken) return true;
        bool all_here = true;
        for (int other = 0; other < world_size; ++other)
            all_here = all_here && table->seats[other].presence != Presence::kAbsent;
        // NCCL's rendezvous is a thread of that process.
        maker_gone = !all_here && start_of(table->maker_pid) != table->maker_started;
        return all_here || maker_gone;
    };
    auto ended = [&](Waited how) {
        if (how == Waited::kLost)
            return refuse(ncclRemoteError, "rank %d: rank %d has gone during start-up", rank, lost);
        (*world)->leave(Presence::kAborted);
        return refuse(ncclInternalError, "rank %d: aborted during start-up", rank);
    };
    Waited how = (*world)->wait(ready, [&] { return (*world)->others(); }, aborted, &lost);
    if (how != Waited::kReady) return ended(how);
    if (maker_gone)
        return refuse(ncclRemoteError, "rank %d: process %d, which made the unique id, has ended during start-up", rank,
                      table->maker_pid);
    if (table->broken) return refuse(ncclResult_t(table->broken.load()), "rank %d: the start-up has failed", rank);
    result = (*world)->check_seats();
    // Nobody goes on, or away, before all have looked.
    how = (*world)->meet(&Seat::host_phase, aborted, &lost);
    if (how != Waited::kReady) return ended(how);
    forget_table(table->nonce);
    return result;
}

World::~World() { munmap(table_, sizeof(Table)); }

// Every rank sees the same seats, so all find the same.
ncclResult_t World::check_seats() {
    bool share = true;
    for (int rank = 0; rank < size_; ++rank) {
        if (seat(rank).version != seat(0).version)
            return refuse(ncclInvalidUsage, "rank %d has NCCL version %d, rank 0 has %d", rank, seat(rank).version,
                          seat(0).version);
        share = share && seat(rank).shares_device;
    }
    for (int rank = 0; rank < size_ && !share; ++rank)
        for (int before = 0; before < rank; ++before)
            if (seat(rank).host == seat(before).host && !strcmp(seat(rank).device, seat(before).device))
                return refuse(ncclInvalidUsage, "duplicate GPU detected: ranks %d and %d both on CUDA device %s",
                              before, rank, seat(rank).device);
    return ncclSuccess;
}

void World::ring(int rank) {
    table_->seats[rank].bell.fetch_add(1);
    futex_wake(&table_->seats[rank].bell);
}

void World::ring_all() {
    for (int rank = 0; rank < size_; ++rank) ring(rank);
}

void World::leave(Presence how) {
    mine().presence = how;
    ring_all();
}

Waited World::wait(const std::function<bool()>& ready, const std::function<uint64_t()>& needed,
                   const std::atomic<bool>* aborted, int* lost) {
    bool asks_processes = false;
    while (true) {
        uint32_t seen = mine().bell;
        if (ready()) return Waited::kReady;
        if (aborted && *aborted) return Waited::kAborted;
        *lost = find_lost(needed(), asks_processes);
        // What it did before it went counts.
        if (*lost >= 0) return ready() ? Waited::kReady : Waited::kLost;
        timespec before, after;
        clock_gettime(CLOCK_MONOTONIC, &before);
        futex_wait(&mine().bell, seen);
        clock_gettime(CLOCK_MONOTONIC, &after);
        asks_processes = (after.tv_sec - before.tv_sec) * 1'000'000'000 + after.tv_nsec - before.tv_nsec >= kLookNs;
    }
}

Waited World::meet(std::atomic<uint64_t> Seat::* phase, const std::atomic<bool>* aborted, int* lost) {
    uint64_t mine_now = ++(mine().*phase);
    ring_all();
    auto late = [&] {
        uint64_t ranks = 0;
        for (int rank = 0; rank < size_; ++rank)
            if (seat(rank).*phase < mine_now) ranks |= uint64_t(1) << rank;
        return ranks;
    };
    return wait([&] { return late() == 0; }, late, aborted, lost);
}

int World::find_lost(uint64_t ranks, bool asks_processes, std::string* how) {
    for (int rank = 0; rank < size_; ++rank) {
        if (!(ranks >> rank & 1) || rank == rank_) continue;
        const char* what = nullptr;
        Presence presence = seat(rank).presence;
        if (presence == Presence::kAborted) what = "has aborted its communicator";
        if (presence == Presence::kDestroyed) what = "has destroyed its communicator";
        if (presence == Presence::kPresent && asks_processes && start_of(seat(rank).pid) != seat(rank).started)
            what = "has ended";
        if (!what) continue;
        if (how) *how = "rank " + std::to_string(rank) + " (process " + std::to_string(seat(rank).pid) + ") " + what;
        return rank;
    }
    return -1;
}

bool read_memory(int pid, void* target, uint64_t source, uint64_t nbytes) {
    auto* to = static_cast<char*>(target);
    while (nbytes) {
        // Also within one process: it reports memory that is not there instead of ending on it.
        iovec local{to, nbytes}, remote{reinterpret_cast<void*>(source), nbytes};
        ssize_t copied = process_vm_readv(pid, &local, 1, &remote, 1, 0);
        if (copied <= 0) {
            if (copied == 0) errno = EFAULT;
            return false;
        }
        to += copied;
        source += copied;
        nbytes -= copied;
    }
    return true;
}

}  // namespace host_nccl

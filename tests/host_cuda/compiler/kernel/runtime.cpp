// Runs a grid: its blocks one after the other, the threads of a block as fibers of the calling OS thread.
//
// A fiber takes one thread after the other of the block and runs it to its end, so a kernel without barriers costs a
// plain loop. A thread that waits (at a barrier or a warp's intrinsic) keeps its fiber, and the scheduler goes on with
// another one. Linked into every module, so that modules depend on nothing that may be unloaded or moved.

#include "abi.h"

#include <sys/mman.h>
#include <time.h>
#include <xmmintrin.h>

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <vector>

register const hostcuda::Thread* hostcuda_self asm("r15");

// Saves the callee's registers and the stack pointer in *save, and goes on where `load` was saved.
extern "C" void hostcuda_switch(void** save, void* load);
extern "C" void hostcuda_fiber_entry();
asm(R"(
.text
.type hostcuda_switch, @function
hostcuda_switch:
    push %rbp
    push %rbx
    push %r12
    push %r13
    push %r14
    push %r15
    mov %rsp, (%rdi)
    mov %rsi, %rsp
    pop %r15
    pop %r14
    pop %r13
    pop %r12
    pop %rbx
    pop %rbp
    ret
.type hostcuda_fiber_entry, @function
hostcuda_fiber_entry:
    mov %r12, %rdi
    call hostcuda_fiber_main
    ud2
)");

namespace hostcuda {
namespace {

constexpr size_t STACK_NBYTES = 256 * 1024, GUARD_NBYTES = 4096;
constexpr unsigned long long STACK_END = 0x5AFE57AC5AFE57AC;  // at the end of every stack, or it has overflowed
constexpr unsigned WARP_SIZE = 32;
constexpr unsigned FLUSH_RESULTS = 0x8000, FLUSH_OPERANDS = 0x0040;  // of the register MXCSR

struct Launch;

struct Fiber {
    enum class State { idle, ready, at_barrier, at_warp };
    Thread thread;  // first: r15 points here
    Launch* launch;
    void* stack_pointer;
    char* stack;
    State state;
    unsigned number;  // of its thread in the block
    WarpOperation operation;
    unsigned mask;
    unsigned long long value;
    WarpValues received;  // its own copy: other lanes may go on to the next intrinsic before it reads them
};

Fiber* self() { return reinterpret_cast<Fiber*>(const_cast<Thread*>(hostcuda_self)); }

struct Warp {
    Fiber* waiting[WARP_SIZE];
    unsigned arrived, ended;
};

// The memory of some fibers' stacks. It goes with the launch: there are many modules, and each has its own runtime.
class Stacks {
public:
    explicit Stacks(unsigned count) : nbytes(GUARD_NBYTES + count * STACK_NBYTES) {
        memory = mmap(nullptr, nbytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (memory == MAP_FAILED || mprotect(memory, GUARD_NBYTES, PROT_NONE) != 0) {
            std::perror("hostcuda: stacks of a kernel's threads");
            std::abort();
        }
    }
    Stacks(const Stacks&) = delete;
    ~Stacks() { munmap(memory, nbytes); }

    char* stack(unsigned number) const { return static_cast<char*>(memory) + GUARD_NBYTES + number * STACK_NBYTES; }

private:
    size_t nbytes;
    void* memory;
};

// Puts on the fiber's stack what hostcuda_switch takes off it.
void prepare(Fiber* fiber) {
    *reinterpret_cast<unsigned long long*>(fiber->stack) = STACK_END;
    auto** top = reinterpret_cast<void**>(fiber->stack + STACK_NBYTES);
    *--top = nullptr;  // the call in hostcuda_fiber_entry then leaves the stack aligned
    *--top = nullptr;
    *--top = reinterpret_cast<void*>(hostcuda_fiber_entry);
    *--top = nullptr;         // rbp
    *--top = nullptr;         // rbx
    *--top = fiber;           // r12
    *--top = nullptr;         // r13
    *--top = nullptr;         // r14
    *--top = &fiber->thread;  // r15
    fiber->stack_pointer = top;
    fiber->state = Fiber::State::idle;
}

struct Launch {
    const Kernel& kernel;
    const void* arguments;
    dim3 grid, block;
    uint3 block_index{}, next_index{};
    unsigned num_threads, next_thread = 0, num_ended = 0, num_at_barrier = 0;
    int barrier_count = 0, released_count = 0;
    int error = SUCCESS;
    void* scheduler = nullptr;
    std::deque<Fiber> fibers;
    std::deque<Stacks> stacks;
    std::vector<Fiber*> idle;
    std::deque<Fiber*> ready;
    int barrier_line = 0;
    std::vector<Warp> warps;

    Launch(const Kernel& kernel, const void* arguments, dim3 grid, dim3 block)
        : kernel(kernel), arguments(arguments), grid(grid), block(block), num_threads(block.x * block.y * block.z),
          warps((num_threads + WARP_SIZE - 1) / WARP_SIZE) {}

    int run() {
        for (block_index.z = 0; block_index.z < grid.z; ++block_index.z)
            for (block_index.y = 0; block_index.y < grid.y; ++block_index.y)
                for (block_index.x = 0; block_index.x < grid.x; ++block_index.x) {
                    run_block();
                    if (error != SUCCESS) return error;
                }
        return SUCCESS;
    }

    void run_block() {
        next_thread = num_ended = 0;
        next_index = uint3{0, 0, 0};
        for (Warp& warp : warps) warp.ended = warp.arrived = 0;
        if (num_threads % WARP_SIZE) warps.back().ended = ~0u << num_threads % WARP_SIZE;
        while (error == SUCCESS && num_ended < num_threads) {
            Fiber* fiber = next_fiber();
            if (fiber == nullptr) return report_divergence();
            hostcuda_switch(&scheduler, fiber->stack_pointer);
            if (*reinterpret_cast<unsigned long long*>(fiber->stack) != STACK_END) {
                report("thread %u overflowed its stack of %zu bytes", fiber->number, STACK_NBYTES);
                std::abort();
            }
        }
    }

    Fiber* next_fiber() {
        if (next_thread < num_threads) {
            if (idle.empty()) return new_fiber();
            Fiber* fiber = idle.back();
            idle.pop_back();
            return fiber;
        }
        if (ready.empty()) return nullptr;
        Fiber* fiber = ready.front();
        ready.pop_front();
        return fiber;
    }

    Fiber* new_fiber() {
        // Most kernels need one.
        const unsigned number = fibers.empty() ? 0 : (fibers.size() - 1) % WARP_SIZE;
        if (number == 0) stacks.emplace_back(fibers.empty() ? 1 : WARP_SIZE);
        Fiber& fiber = fibers.emplace_back();
        fiber.launch = this;
        fiber.thread.block_dim = block;
        fiber.thread.grid_dim = grid;
        fiber.stack = stacks.back().stack(number);
        prepare(&fiber);
        return &fiber;
    }

    // The next thread of the block that has not begun becomes the fiber's.
    bool take_thread(Fiber* fiber) {
        if (next_thread == num_threads || error != SUCCESS) return false;
        fiber->number = next_thread++;
        fiber->thread.block_index = block_index;
        fiber->thread.thread_index = next_index;
        if (++next_index.x == block.x) {
            next_index.x = 0;
            if (++next_index.y == block.y) {
                next_index.y = 0;
                ++next_index.z;
            }
        }
        return true;
    }

    void end_thread(Fiber* fiber) {
        ++num_ended;
        Warp& warp = warps[fiber->number / WARP_SIZE];
        warp.ended |= 1u << fiber->number % WARP_SIZE;
        // The others may have waited for this one only.
        if (num_at_barrier != 0) complete_barrier();
        for (unsigned lane = 0; warp.arrived != 0 && lane < WARP_SIZE; ++lane)
            if (warp.arrived >> lane & 1) complete_warp(warp, warp.waiting[lane]->mask);
    }

    void release(Fiber* fiber) {
        fiber->state = Fiber::State::ready;
        ready.push_back(fiber);
    }

    void complete_barrier() {
        if (num_at_barrier + num_ended < num_threads) return;
        released_count = barrier_count;
        num_at_barrier = 0;
        barrier_count = 0;
        for (Fiber& fiber : fibers)
            if (fiber.state == Fiber::State::at_barrier) release(&fiber);
    }

    void complete_warp(Warp& warp, unsigned mask) {
        const unsigned awaited = mask & ~warp.ended;
        if (awaited == 0 || (warp.arrived & awaited) != awaited) return;
        Fiber* first = warp.waiting[__builtin_ctz(awaited)];
        WarpValues values{};
        values.participants = awaited;
        for (unsigned lane = 0; lane < WARP_SIZE; ++lane) {
            if (!(awaited >> lane & 1)) continue;
            Fiber* fiber = warp.waiting[lane];
            if (fiber->mask != first->mask || fiber->operation != first->operation) {
                report("lanes %u and %u of a warp call different intrinsics, or with masks %#x and %#x",
                       first->number % WARP_SIZE, lane, first->mask, fiber->mask);
                error = LAUNCH_FAILURE;
                return;
            }
            values.of_lane[lane] = fiber->value;
        }
        warp.arrived &= ~awaited;
        for (unsigned lane = 0; lane < WARP_SIZE; ++lane) {
            if (!(awaited >> lane & 1)) continue;
            warp.waiting[lane]->received = values;
            release(warp.waiting[lane]);
        }
    }

    // Goes back to the scheduler until somebody releases this fiber.
    void wait(Fiber* fiber) { hostcuda_switch(&fiber->stack_pointer, scheduler); }

    void report(const char* format, ...) const {
        char text[512];
        va_list values;
        va_start(values, format);
        std::vsnprintf(text, sizeof text, format, values);
        va_end(values);
        std::fprintf(stderr, "hostcuda: kernel %s, block (%u, %u, %u): %s\n", kernel.name, block_index.x,
                     block_index.y, block_index.z, text);
        std::fflush(stderr);
    }

    void report_divergence() {
        unsigned at_warp = 0, mask = 0;
        for (const Fiber& fiber : fibers)
            if (fiber.state == Fiber::State::at_warp) ++at_warp, mask = fiber.mask;
        report("%u threads wait at __syncthreads() and %u for lanes of their warp (mask %#x) that never come; %u of %u "
               "have ended", num_at_barrier, at_warp, mask, num_ended, num_threads);
        error = LAUNCH_FAILURE;
    }
};

}  // namespace
}  // namespace hostcuda

using namespace hostcuda;

extern "C" {

__attribute__((used)) void hostcuda_fiber_main(Fiber* fiber) {
    for (;;) {
        Launch* launch = fiber->launch;
        while (launch->take_thread(fiber)) {
            launch->kernel.run_thread(launch->arguments);
            launch->end_thread(fiber);
        }
        fiber->state = Fiber::State::idle;
        launch->idle.push_back(fiber);
        launch->wait(fiber);
    }
}

int hostcuda_run(const Kernel* kernel, const void* arguments, const unsigned* grid, const unsigned* block, unsigned) {
    const unsigned caller_mxcsr = _mm_getcsr();
    Launch launch(*kernel, arguments, dim3(grid[0], grid[1], grid[2]), dim3(block[0], block[1], block[2]));
    if (launch.num_threads == 0 || launch.num_threads > kernel->max_threads_per_block) {
        std::fprintf(stderr, "hostcuda: kernel %s: got blocks of %u threads, expected 1 to %u\n", kernel->name,
                     launch.num_threads, kernel->max_threads_per_block);
        return INVALID_CONFIGURATION;
    }
    _mm_setcsr(0x1f80 | (kernel->flushes_subnormals ? FLUSH_RESULTS | FLUSH_OPERANDS : 0));
    const int error = launch.run();
    _mm_setcsr(caller_mxcsr);
    return error;
}

int hostcuda_block_barrier(int line, bool predicate) {
    Fiber* fiber = self();
    Launch* launch = fiber->launch;
    if (launch->num_at_barrier != 0 && launch->barrier_line != line) {
        launch->report("thread %u waits at the __syncthreads() of line %d, others at that of line %d", fiber->number,
                       line, launch->barrier_line);
        launch->error = LAUNCH_FAILURE;
        launch->wait(fiber);
    }
    launch->barrier_line = line;
    fiber->state = Fiber::State::at_barrier;
    ++launch->num_at_barrier;
    launch->barrier_count += predicate;
    launch->complete_barrier();
    launch->wait(fiber);
    return launch->released_count;
}

const WarpValues* hostcuda_warp_exchange(WarpOperation operation, unsigned mask, unsigned long long value) {
    Fiber* fiber = self();
    Launch* launch = fiber->launch;
    const unsigned lane = fiber->number % 32;
    Warp& warp = launch->warps[fiber->number / 32];
    if (!(mask >> lane & 1)) {
        launch->report("lane %u calls a warp's intrinsic with the mask %#x, which does not have it", lane, mask);
        launch->error = LAUNCH_FAILURE;
        launch->wait(fiber);
    }
    fiber->operation = operation;
    fiber->mask = mask;
    fiber->value = value;
    fiber->state = Fiber::State::at_warp;
    warp.waiting[lane] = fiber;
    warp.arrived |= 1u << lane;
    launch->complete_warp(warp, mask);
    launch->wait(fiber);
    return &fiber->received;
}

unsigned hostcuda_lane() { return self()->number % 32; }

unsigned hostcuda_active_lanes() { return ~self()->launch->warps[self()->number / 32].ended; }

void hostcuda_fail(int error, const char* message) {
    Fiber* fiber = self();
    const uint3& at = fiber->thread.thread_index;
    fiber->launch->report("thread (%u, %u, %u): %s", at.x, at.y, at.z, message);
    fiber->launch->error = error;
    fiber->launch->wait(fiber);
    __builtin_unreachable();
}

unsigned long long hostcuda_now_ns() {
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000ull + now.tv_nsec;
}

void hostcuda_sleep_ns(unsigned duration_ns) {
    // The others of the block go on meanwhile: what this thread polls for may be theirs to do.
    Fiber* fiber = self();
    if (fiber->launch->num_threads > 1) {
        fiber->launch->release(fiber);
        fiber->launch->wait(fiber);
    }
    const timespec duration = {0, static_cast<long>(duration_ns % 1000000000)};
    nanosleep(&duration, nullptr);
}
}

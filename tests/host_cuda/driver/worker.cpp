// Threads that are never joined, with a signal stack for faults.
#include "worker.h"

#include <pthread.h>

#include <condition_variable>
#include <csignal>
#include <cstdlib>
#include <deque>
#include <mutex>

#include "device.h"

namespace hostcuda {
namespace {

constexpr std::size_t kSignalStackNbytes = 64 << 10;

struct Start {
    std::string name;
    std::function<void()> run;
};

void* thread_main(void* argument) {
    Start* start = static_cast<Start*>(argument);
    pthread_setname_np(pthread_self(), start->name.substr(0, 15).c_str());
    stack_t stack = {};
    stack.ss_sp = std::malloc(kSignalStackNbytes);
    stack.ss_size = kSignalStackNbytes;
    sigaltstack(&stack, nullptr);
    start->run();
    stack.ss_flags = SS_DISABLE;
    void* memory = stack.ss_sp;
    sigaltstack(&stack, nullptr);
    std::free(memory);
    delete start;
    return nullptr;
}

struct Helpers {
    std::mutex mutex;
    std::condition_variable changed;
    std::deque<std::function<void()>> waiting;
    std::size_t num_idle = 0;
};

Helpers& helpers() {
    static Helpers& all = *new Helpers;
    return all;
}

void help() {
    Helpers& all = helpers();
    std::unique_lock<std::mutex> lock(all.mutex);
    while (true) {
        all.changed.wait(lock, [&] { return !all.waiting.empty(); });
        std::function<void()> run = std::move(all.waiting.front());
        all.waiting.pop_front();
        lock.unlock();
        run();
        run = nullptr;
        lock.lock();
        ++all.num_idle;
    }
}

}  // namespace

void start_thread(const std::string& name, std::function<void()> run) {
    // Signals of the program are for its own threads.
    sigset_t blocked, before;
    sigfillset(&blocked);
    for (int signal_number : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP}) sigdelset(&blocked, signal_number);
    pthread_sigmask(SIG_SETMASK, &blocked, &before);
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    pthread_t thread;
    int status = pthread_create(&thread, &attributes, thread_main, new Start{name, std::move(run)});
    pthread_attr_destroy(&attributes);
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    if (status) {
        complain("cannot start a thread: error %d", status);
        std::abort();
    }
}

void run_on_helper(std::function<void()> run) {
    Helpers& all = helpers();
    bool needs_another;
    {
        std::lock_guard<std::mutex> lock(all.mutex);
        all.waiting.push_back(std::move(run));
        // An idle one is spoken for by what already waits.
        needs_another = all.num_idle == 0;
        if (!needs_another) --all.num_idle;
        all.changed.notify_one();
    }
    if (needs_another) start_thread("hostcuda-help", help);
}

}  // namespace hostcuda

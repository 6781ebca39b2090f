// Barriers, intrinsics of a warp, fences and atomics.
#pragma once

#define __syncthreads() ((void)hostcuda_block_barrier(__LINE__, false))

inline void __threadfence() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
inline void __threadfence_block() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
inline void __threadfence_system() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
inline void __nanosleep(unsigned duration_ns) { hostcuda_sleep_ns(duration_ns); }
inline long long clock64() { return hostcuda_now_ns(); }
inline clock_t clock() { return hostcuda_now_ns(); }

constexpr unsigned HOSTCUDA_ALL_LANES = 0xffffffff;

inline void __syncwarp(unsigned mask = HOSTCUDA_ALL_LANES) {
    hostcuda_warp_exchange(hostcuda::WarpOperation::sync, mask, 0);
}
inline unsigned __activemask() { return hostcuda_active_lanes(); }

namespace hostcuda {
template <class T>
inline unsigned long long to_word(T value) {
    static_assert(sizeof(T) <= 8, "a warp's intrinsics take up to 8 bytes");
    unsigned long long word = 0;
    __builtin_memcpy(&word, &value, sizeof value);
    return word;
}

template <class T>
inline T from_word(unsigned long long word) {
    T value;
    __builtin_memcpy(&value, &word, sizeof value);
    return value;
}

// The value of lane `source`; the own one where it is out of the segment, as in CUDA. What a lane gives that takes no
// part is undefined in CUDA; here it ends the launch.
template <class T>
inline T shuffled(unsigned mask, T value, int source, bool is_inside) {
    const WarpValues* values = hostcuda_warp_exchange(WarpOperation::shuffle, mask, to_word(value));
    if (!is_inside) return value;
    if (!(values->participants >> source & 1)) hostcuda_fail(LAUNCH_FAILURE, "shuffle from a lane that takes no part");
    return from_word<T>(values->of_lane[source]);
}

inline unsigned votes(unsigned mask, bool predicate) {
    const WarpValues* values = hostcuda_warp_exchange(WarpOperation::vote, mask, predicate);
    unsigned result = 0;
    for (int lane = 0; lane < 32; ++lane)
        if (values->participants >> lane & 1 && values->of_lane[lane]) result |= 1u << lane;
    return result;
}

}  // namespace hostcuda

template <class T>
inline T __shfl_sync(unsigned mask, T value, int source, int width = 32) {
    const int lane = hostcuda_lane();
    return hostcuda::shuffled(mask, value, (lane & -width) + (source & (width - 1)), true);
}
template <class T>
inline T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32) {
    const int lane = hostcuda_lane();
    return hostcuda::shuffled(mask, value, lane - (int)delta, (lane & (width - 1)) >= (int)delta);
}
template <class T>
inline T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32) {
    const int lane = hostcuda_lane();
    return hostcuda::shuffled(mask, value, lane + (int)delta, (lane & (width - 1)) + (int)delta < width);
}
template <class T>
inline T __shfl_xor_sync(unsigned mask, T value, int lane_mask, int width = 32) {
    const int lane = hostcuda_lane(), source = lane ^ lane_mask;
    return hostcuda::shuffled(mask, value, source, source < (lane & -width) + width);
}

inline unsigned __ballot_sync(unsigned mask, int predicate) { return hostcuda::votes(mask, predicate); }
inline int __any_sync(unsigned mask, int predicate) { return hostcuda::votes(mask, predicate) != 0; }
inline int __all_sync(unsigned mask, int predicate) { return hostcuda::votes(mask, !predicate) == 0; }
// Atomics of the host: kernels of other streams, and the CPU, run at the same time.
namespace hostcuda {
template <class T, class Update>
inline T update(T* address, Update update) {
    T old, updated;
    __atomic_load(address, &old, __ATOMIC_RELAXED);
    do updated = update(old);
    while (!__atomic_compare_exchange(address, &old, &updated, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
    return old;
}
}  // namespace hostcuda

#define HOSTCUDA_ATOMIC(name, T, expression) \
    inline T name(T* address, T value) { return hostcuda::update(address, [=](T old) -> T { return expression; }); }
#define HOSTCUDA_ATOMIC_SCOPES(name, T, expression) \
    HOSTCUDA_ATOMIC(name, T, expression)            \
    HOSTCUDA_ATOMIC(name##_block, T, expression)    \
    HOSTCUDA_ATOMIC(name##_system, T, expression)
#define HOSTCUDA_ATOMIC_INTEGERS(name, expression)              \
    HOSTCUDA_ATOMIC_SCOPES(name, int, expression)               \
    HOSTCUDA_ATOMIC_SCOPES(name, unsigned, expression)          \
    HOSTCUDA_ATOMIC_SCOPES(name, unsigned long long, expression)
HOSTCUDA_ATOMIC_INTEGERS(atomicAdd, old + value)
HOSTCUDA_ATOMIC_SCOPES(atomicAdd, float, old + value)
HOSTCUDA_ATOMIC_SCOPES(atomicAdd, double, old + value)
HOSTCUDA_ATOMIC_SCOPES(atomicSub, int, old - value)
HOSTCUDA_ATOMIC_SCOPES(atomicSub, unsigned, old - value)
HOSTCUDA_ATOMIC_INTEGERS(atomicExch, value)
HOSTCUDA_ATOMIC_SCOPES(atomicExch, float, value)
HOSTCUDA_ATOMIC_INTEGERS(atomicMin, old < value ? old : value)
HOSTCUDA_ATOMIC_SCOPES(atomicMin, long long, old < value ? old : value)
HOSTCUDA_ATOMIC_INTEGERS(atomicMax, old > value ? old : value)
HOSTCUDA_ATOMIC_SCOPES(atomicMax, long long, old > value ? old : value)
#undef HOSTCUDA_ATOMIC
#undef HOSTCUDA_ATOMIC_SCOPES
#undef HOSTCUDA_ATOMIC_INTEGERS

#define HOSTCUDA_CAS(T)                                                                                   \
    inline T atomicCAS(T* address, T expected, T value) {                                                 \
        __atomic_compare_exchange(address, &expected, &value, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED); \
        return expected;                                                                                  \
    }                                                                                                     \
    inline T atomicCAS_block(T* address, T expected, T value) { return atomicCAS(address, expected, value); }  \
    inline T atomicCAS_system(T* address, T expected, T value) { return atomicCAS(address, expected, value); }
HOSTCUDA_CAS(int)
HOSTCUDA_CAS(unsigned)
HOSTCUDA_CAS(unsigned long long)
HOSTCUDA_CAS(unsigned short)
#undef HOSTCUDA_CAS

// CUDA C++ for g++: what NVRTC declares before the first line of a program. It comes first in every program that
// libnvrtc compiles, which sees no header of the host.
//
// Left to source.cpp, which rewrites them in the preprocessed text: __global__, __launch_bounds__, asm.
#pragma once

#include "abi.h"

typedef __SIZE_TYPE__ size_t;
typedef __PTRDIFF_TYPE__ ptrdiff_t;
typedef long long clock_t;
#define NULL 0

#define __device__
#define __host__
#define __constant__
#define __managed__
#define __grid_constant__
// One OS thread runs a launch, so memory of a thread is memory of a block.
#define __shared__ thread_local
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __align__(n) __attribute__((aligned(n)))
#define __builtin_align__(n) __attribute__((aligned(n)))
#define __cdecl
#define __CUDACC_RTC__ 1
#define __CUDACC__ 1
#define CUDART_VERSION (__CUDACC_VER_MAJOR__ * 1000 + __CUDACC_VER_MINOR__ * 10)

register const hostcuda::Thread* hostcuda_self __hostcuda_asm__("r15");
#define threadIdx (hostcuda_self->thread_index)
#define blockIdx (hostcuda_self->block_index)
#define blockDim (hostcuda_self->block_dim)
#define gridDim (hostcuda_self->grid_dim)
constexpr int warpSize = 32;

namespace std {
template <class T>
class initializer_list {  // of the layout that g++ expects
    const T* first;
    size_t count;
    constexpr initializer_list(const T* first, size_t count) : first(first), count(count) {}

public:
    typedef T value_type;
    typedef const T* iterator;
    constexpr initializer_list() noexcept : first(nullptr), count(0) {}
    constexpr size_t size() const noexcept { return count; }
    constexpr const T* begin() const noexcept { return first; }
    constexpr const T* end() const noexcept { return first + count; }
};
}  // namespace std

extern "C" {
void* memcpy(void*, const void*, size_t) noexcept;
void* memmove(void*, const void*, size_t) noexcept;
void* memset(void*, int, size_t) noexcept;
int memcmp(const void*, const void*, size_t) noexcept;
size_t strlen(const char*) noexcept;
int strcmp(const char*, const char*) noexcept;
void* malloc(size_t) noexcept;
void free(void*) noexcept;
int printf(const char*, ...);
}
inline void* operator new(size_t, void* place) noexcept { return place; }

#define HOSTCUDA_TEXT_(x) #x
#define HOSTCUDA_TEXT(x) HOSTCUDA_TEXT_(x)
#ifdef NDEBUG
#define assert(condition) ((void)0)
#else
#define assert(condition)                                                                      \
    ((condition) ? (void)0                                                                     \
                 : hostcuda_fail(hostcuda::ASSERT, __FILE__ ":" HOSTCUDA_TEXT(__LINE__)        \
                                                   ": Assertion `" #condition "` failed."))
#endif
#define __trap() hostcuda_fail(hostcuda::LAUNCH_FAILURE, "trap")
#define __brkpt() ((void)0)

#include "intrinsics.h"
#include "math.h"
#include "synchronization.h"
#include "ptx.h"
#include "launch.h"

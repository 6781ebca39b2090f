// Bit casts, integer intrinsics and roundings of CUDA.
#pragma once

namespace hostcuda {
template <class To, class From>
inline To bits_as(From from) {
    static_assert(sizeof(To) == sizeof(From), "sizes");
    To to;
    __builtin_memcpy(&to, &from, sizeof to);
    return to;
}
}  // namespace hostcuda

inline float __int_as_float(int x) { return hostcuda::bits_as<float>(x); }
inline float __uint_as_float(unsigned x) { return hostcuda::bits_as<float>(x); }
inline int __float_as_int(float x) { return hostcuda::bits_as<int>(x); }
inline unsigned __float_as_uint(float x) { return hostcuda::bits_as<unsigned>(x); }
inline double __longlong_as_double(long long x) { return hostcuda::bits_as<double>(x); }
inline long long __double_as_longlong(double x) { return hostcuda::bits_as<long long>(x); }
inline int __double2hiint(double x) { return int(hostcuda::bits_as<unsigned long long>(x) >> 32); }
inline int __double2loint(double x) { return int(hostcuda::bits_as<unsigned long long>(x)); }
inline double __hiloint2double(int high, int low) {
    return hostcuda::bits_as<double>((unsigned long long)(unsigned)high << 32 | (unsigned)low);
}

inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
inline int __clz(int x) { return x ? __builtin_clz(x) : 32; }
inline int __clzll(long long x) { return x ? __builtin_clzll(x) : 64; }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __ffsll(long long x) { return __builtin_ffsll(x); }

// Roundings other than to nearest even are missing: g++ would move the operations out of a changed mode.
#define HOSTCUDA_ROUNDED(type, prefix, suffix)                                                \
    inline type prefix##add_rn(type a, type b) { return a + b; }                              \
    inline type prefix##sub_rn(type a, type b) { return a - b; }                              \
    inline type prefix##mul_rn(type a, type b) { return a * b; }                              \
    inline type prefix##div_rn(type a, type b) { return a / b; }                              \
    inline type prefix##sqrt_rn(type a) { return __builtin_sqrt##suffix(a); }                 \
    inline type prefix##rcp_rn(type a) { return 1 / a; }
HOSTCUDA_ROUNDED(float, __f, f)
HOSTCUDA_ROUNDED(double, __d, )
#undef HOSTCUDA_ROUNDED
inline float __fmaf_rn(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
inline double __fma_rn(double a, double b, double c) { return __builtin_fma(a, b, c); }

// Loads with a hint for the cache.
template <class T> inline T __ldg(const T* at) { return *at; }

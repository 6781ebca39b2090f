// CUDA's half: what CuPy and most kernels use of it. Arithmetic is in float, rounded to half once, as that of a GPU is.
#pragma once

struct __half_raw {
    unsigned short x;
};

struct __half {
    _Float16 value;
    __half() = default;
    __half(const __half_raw& raw) : value(hostcuda::bits_as<_Float16>(raw.x)) {}
    __half(float v) : value(v) {}
    __half(double v) : value(v) {}
    __half(short v) : value(v) {}
    __half(unsigned short v) : value(v) {}
    __half(int v) : value(v) {}
    __half(unsigned v) : value(v) {}
    __half(long v) : value(v) {}
    __half(unsigned long v) : value(v) {}
    __half(long long v) : value(v) {}
    __half(unsigned long long v) : value(v) {}
    explicit __half(bool v) : value(int(v)) {}
    operator float() const { return value; }
    operator __half_raw() const { return __half_raw{hostcuda::bits_as<unsigned short>(value)}; }
    explicit operator bool() const { return value != 0; }
    explicit operator int() const { return value; }
    explicit operator unsigned() const { return value; }
    explicit operator long long() const { return value; }
    explicit operator unsigned long long() const { return value; }
};
typedef __half half;

struct alignas(4) __half2 {
    __half x, y;
};
typedef __half2 half2;

inline __half __float2half(float x) { return __half(x); }
inline __half __float2half_rn(float x) { return __half(x); }
inline __half __double2half(double x) { return __half(x); }
inline float __half2float(__half x) { return x; }
inline unsigned short __half_as_ushort(__half x) { return __half_raw(x).x; }
inline short __half_as_short(__half x) { return __half_raw(x).x; }
inline __half __ushort_as_half(unsigned short x) { return __half(__half_raw{x}); }
inline __half __short_as_half(short x) { return __half(__half_raw{(unsigned short)x}); }

#define HOSTCUDA_ARITHMETIC(operation, name)                                                          \
    inline __half operator operation(__half a, __half b) { return __half(float(a) operation float(b)); } \
    inline __half& operator operation##=(__half& a, __half b) { return a = a operation b; }           \
    inline __half name(__half a, __half b) { return a operation b; }
HOSTCUDA_ARITHMETIC(+, __hadd)
HOSTCUDA_ARITHMETIC(-, __hsub)
HOSTCUDA_ARITHMETIC(*, __hmul)
HOSTCUDA_ARITHMETIC(/, __hdiv)
#undef HOSTCUDA_ARITHMETIC
inline __half operator-(__half a) { return __ushort_as_half(__half_as_ushort(a) ^ 0x8000); }
inline __half operator+(__half a) { return a; }

#define HOSTCUDA_COMPARISON(operation, name)                                                    \
    inline bool operator operation(__half a, __half b) { return float(a) operation float(b); }  \
    inline bool name(__half a, __half b) { return a operation b; }
HOSTCUDA_COMPARISON(==, __heq)
HOSTCUDA_COMPARISON(!=, __hne)
HOSTCUDA_COMPARISON(<, __hlt)
HOSTCUDA_COMPARISON(<=, __hle)
HOSTCUDA_COMPARISON(>, __hgt)
HOSTCUDA_COMPARISON(>=, __hge)
#undef HOSTCUDA_COMPARISON
inline bool __hisnan(__half a) { return isnan(float(a)); }
inline int __hisinf(__half a) { return isinf(float(a)) ? float(a) < 0 ? -1 : 1 : 0; }

// CUDA's bfloat16: what CuPy and most kernels use of it.
#pragma once

struct __nv_bfloat16_raw {
    unsigned short x;
};

struct __nv_bfloat16 {
    unsigned short bits;
    __nv_bfloat16() = default;
    __nv_bfloat16(const __nv_bfloat16_raw& raw) : bits(raw.x) {}
    __nv_bfloat16(float v) : bits(rounded(v)) {}
    __nv_bfloat16(double v) : bits(rounded(float(v))) {}
    __nv_bfloat16(int v) : bits(rounded(float(v))) {}
    __nv_bfloat16(unsigned v) : bits(rounded(float(v))) {}
    __nv_bfloat16(long long v) : bits(rounded(float(v))) {}
    __nv_bfloat16(unsigned long long v) : bits(rounded(float(v))) {}
    operator float() const { return __uint_as_float((unsigned)bits << 16); }
    operator __nv_bfloat16_raw() const { return __nv_bfloat16_raw{bits}; }

private:
    // To the nearest, of two the even one; NaN as CUDA has it.
    static unsigned short rounded(float v) {
        const unsigned raw = __float_as_uint(v);
        return v != v ? 0x7fff : (raw + 0x7fff + (raw >> 16 & 1)) >> 16;
    }
};
typedef __nv_bfloat16 nv_bfloat16;

inline __nv_bfloat16 __float2bfloat16(float x) { return __nv_bfloat16(x); }
inline __nv_bfloat16 __float2bfloat16_rn(float x) { return __nv_bfloat16(x); }
inline __nv_bfloat16 __double2bfloat16(double x) { return __nv_bfloat16(x); }
inline float __bfloat162float(__nv_bfloat16 x) { return x; }
inline unsigned short __bfloat16_as_ushort(__nv_bfloat16 x) { return x.bits; }
inline __nv_bfloat16 __ushort_as_bfloat16(unsigned short x) { return __nv_bfloat16(__nv_bfloat16_raw{x}); }

#define HOSTCUDA_ARITHMETIC(operation, name)                                                                  \
    inline __nv_bfloat16 operator operation(__nv_bfloat16 a, __nv_bfloat16 b) {                               \
        return __nv_bfloat16(float(a) operation float(b));                                                    \
    }                                                                                                         \
    inline __nv_bfloat16& operator operation##=(__nv_bfloat16& a, __nv_bfloat16 b) { return a = a operation b; } \
    inline __nv_bfloat16 name(__nv_bfloat16 a, __nv_bfloat16 b) { return a operation b; }
HOSTCUDA_ARITHMETIC(+, __hadd)
HOSTCUDA_ARITHMETIC(-, __hsub)
HOSTCUDA_ARITHMETIC(*, __hmul)
HOSTCUDA_ARITHMETIC(/, __hdiv)
#undef HOSTCUDA_ARITHMETIC
inline __nv_bfloat16 operator-(__nv_bfloat16 a) { return __ushort_as_bfloat16(a.bits ^ 0x8000); }

#define HOSTCUDA_COMPARISON(operation, name)                                                                  \
    inline bool operator operation(__nv_bfloat16 a, __nv_bfloat16 b) { return float(a) operation float(b); }  \
    inline bool name(__nv_bfloat16 a, __nv_bfloat16 b) { return a operation b; }
HOSTCUDA_COMPARISON(==, __heq)
HOSTCUDA_COMPARISON(!=, __hne)
HOSTCUDA_COMPARISON(<, __hlt)
HOSTCUDA_COMPARISON(<=, __hle)
HOSTCUDA_COMPARISON(>, __hgt)
HOSTCUDA_COMPARISON(>=, __hge)
#undef HOSTCUDA_COMPARISON
inline bool __hisnan(__nv_bfloat16 a) { return (a.bits & 0x7fff) > 0x7f80; }
inline int __hisinf(__nv_bfloat16 a) { return (a.bits & 0x7fff) == 0x7f80 ? a.bits >> 15 ? -1 : 1 : 0; }

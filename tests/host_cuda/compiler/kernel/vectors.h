// CUDA's vector types, with CUDA's alignments; no header is included, as NVRTC has none.
#pragma once

struct dim3;

#define HOSTCUDA_VECTORS(base, name, align2, align4)                                                          \
    struct name##1 { base x; };                                                                               \
    struct __attribute__((aligned(align2))) name##2 { base x, y; };                                           \
    struct name##3 { base x, y, z; };                                                                         \
    struct __attribute__((aligned(align4))) name##4 { base x, y, z, w; };                                     \
    static inline name##1 make_##name##1(base x) { return name##1{x}; }                                       \
    static inline name##2 make_##name##2(base x, base y) { return name##2{x, y}; }                            \
    static inline name##3 make_##name##3(base x, base y, base z) { return name##3{x, y, z}; }                 \
    static inline name##4 make_##name##4(base x, base y, base z, base w) { return name##4{x, y, z, w}; }

HOSTCUDA_VECTORS(signed char, char, 2, 4)
HOSTCUDA_VECTORS(unsigned char, uchar, 2, 4)
HOSTCUDA_VECTORS(short, short, 4, 8)
HOSTCUDA_VECTORS(unsigned short, ushort, 4, 8)
HOSTCUDA_VECTORS(int, int, 8, 16)
HOSTCUDA_VECTORS(unsigned int, uint, 8, 16)
HOSTCUDA_VECTORS(long, long, 16, 16)
HOSTCUDA_VECTORS(unsigned long, ulong, 16, 16)
HOSTCUDA_VECTORS(long long, longlong, 16, 16)
HOSTCUDA_VECTORS(unsigned long long, ulonglong, 16, 16)
HOSTCUDA_VECTORS(float, float, 8, 16)
HOSTCUDA_VECTORS(double, double, 16, 16)

#undef HOSTCUDA_VECTORS

struct dim3 {
    unsigned int x, y, z;
    constexpr dim3(unsigned int vx = 1, unsigned int vy = 1, unsigned int vz = 1) : x(vx), y(vy), z(vz) {}
    constexpr dim3(uint3 v) : x(v.x), y(v.y), z(v.z) {}
    constexpr operator uint3() const { return uint3{x, y, z}; }
};

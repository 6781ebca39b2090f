// The PTX instructions that inline assembly may use: source.cpp rewrites asm("add.rn.f32 %0, %1, %2;" : ...) to
// a call of hostcuda::ptx::add_rn_f32(destination, a, b). An instruction that is missing here is a compile error.
//
// Instructions without .ftz keep subnormal numbers whatever -ftz says, so these work in the mode of IEEE.
#pragma once

namespace hostcuda {
namespace ptx {

inline unsigned long long globaltimer() { return hostcuda_now_ns(); }
inline unsigned long long clock64() { return hostcuda_now_ns(); }
inline unsigned laneid() { return hostcuda_lane(); }

template <class To, class From>
inline void mov_b16(To& to, From from) { to = bits_as<To>(from); }
template <class To, class From>
inline void mov_b32(To& to, From from) { to = bits_as<To>(from); }
template <class To, class From>
inline void mov_b64(To& to, From from) { to = bits_as<To>(from); }
inline void mov_u32(unsigned& to, unsigned from) { to = from; }
inline void mov_u32(int& to, unsigned from) { to = from; }
template <class To>
inline void mov_u64(To& to, unsigned long long from) { to = from; }

typedef _Float16 Half;
template <class To>
inline void cvt_f32_f16(float& to, To from) { to = bits_as<Half>(from); }
template <class To>
inline void cvt_rn_f16_f32(To& to, float from) { to = bits_as<To>(Half(from)); }

#define HOSTCUDA_IEEE(name, instruction, type)                                                                  \
    inline void name(type& to, type a, type b) {                                                                \
        const unsigned ieee = 0x1f80;                                                                           \
        unsigned saved;                                                                                         \
        __hostcuda_asm__ volatile("stmxcsr %1\n\tldmxcsr %2\n\t" instruction " %3, %0\n\tldmxcsr %1"            \
                                  : "+x"(a), "=m"(saved)                                                        \
                                  : "m"(ieee), "x"(b));                                                         \
        to = a;                                                                                                 \
    }
HOSTCUDA_IEEE(add_rn_f32, "addss", float)
HOSTCUDA_IEEE(sub_rn_f32, "subss", float)
HOSTCUDA_IEEE(mul_rn_f32, "mulss", float)
HOSTCUDA_IEEE(div_rn_f32, "divss", float)
HOSTCUDA_IEEE(add_rn_f64, "addsd", double)
HOSTCUDA_IEEE(sub_rn_f64, "subsd", double)
HOSTCUDA_IEEE(mul_rn_f64, "mulsd", double)
HOSTCUDA_IEEE(div_rn_f64, "divsd", double)
HOSTCUDA_IEEE(add_f32, "addss", float)
HOSTCUDA_IEEE(sub_f32, "subss", float)
HOSTCUDA_IEEE(mul_f32, "mulss", float)
#undef HOSTCUDA_IEEE

inline void membar_sys() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
inline void membar_gl() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
inline void membar_cta() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }

template <class Word, class Address>
inline void ld_global_v4_u32(Word& x, Word& y, Word& z, Word& w, Address address) {
    const uint4 words = *reinterpret_cast<const uint4*>(address);
    x = words.x, y = words.y, z = words.z, w = words.w;
}
template <class Address>
inline void st_global_v4_u32(Address address, unsigned x, unsigned y, unsigned z, unsigned w) {
    *reinterpret_cast<uint4*>(address) = uint4{x, y, z, w};
}

}  // namespace ptx
}  // namespace hostcuda

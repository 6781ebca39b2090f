// CUDA's mathematical functions, by those of the host's libm; the last bits may differ from a GPU's.
#pragma once

// For float, double, and integers as double.
#define HOSTCUDA_MATH1(name)                                                                  \
    extern "C" double name(double) noexcept;                                                  \
    extern "C" float name##f(float) noexcept;                                                 \
    inline float name(float x) { return name##f(x); }                                         \
    template <class T>                                                                        \
    inline hostcuda::IfInteger<T> name(T x) { return name(double(x)); }
#define HOSTCUDA_MATH2(name)                                                                  \
    extern "C" double name(double, double) noexcept;                                          \
    extern "C" float name##f(float, float) noexcept;                                          \
    inline float name(float x, float y) { return name##f(x, y); }                             \
    template <class T, class U>                                                               \
    inline hostcuda::IfMixed<T, U> name(T x, U y) { return name(double(x), double(y)); }

namespace hostcuda {
template <class T> struct AsDouble {};
template <> struct AsDouble<signed char> { typedef double type; };
template <> struct AsDouble<unsigned char> { typedef double type; };
template <> struct AsDouble<char> { typedef double type; };
template <> struct AsDouble<bool> { typedef double type; };
template <> struct AsDouble<short> { typedef double type; };
template <> struct AsDouble<unsigned short> { typedef double type; };
template <> struct AsDouble<int> { typedef double type; };
template <> struct AsDouble<unsigned> { typedef double type; };
template <> struct AsDouble<long> { typedef double type; };
template <> struct AsDouble<unsigned long> { typedef double type; };
template <> struct AsDouble<long long> { typedef double type; };
template <> struct AsDouble<unsigned long long> { typedef double type; };
template <class T> using IfInteger = typename AsDouble<T>::type;

template <class T> struct IsNumber { static constexpr bool value = false; };
#define HOSTCUDA_NUMBER(T) \
    template <> struct IsNumber<T> { static constexpr bool value = true; };
HOSTCUDA_NUMBER(signed char) HOSTCUDA_NUMBER(unsigned char) HOSTCUDA_NUMBER(char) HOSTCUDA_NUMBER(bool)
HOSTCUDA_NUMBER(short) HOSTCUDA_NUMBER(unsigned short) HOSTCUDA_NUMBER(int) HOSTCUDA_NUMBER(unsigned)
HOSTCUDA_NUMBER(long) HOSTCUDA_NUMBER(unsigned long) HOSTCUDA_NUMBER(long long) HOSTCUDA_NUMBER(unsigned long long)
HOSTCUDA_NUMBER(float) HOSTCUDA_NUMBER(double)
#undef HOSTCUDA_NUMBER

template <class T, class U> struct IsSame { static constexpr bool value = false; };
template <class T> struct IsSame<T, T> { static constexpr bool value = true; };
template <bool, class T> struct EnableIf {};
template <class T> struct EnableIf<true, T> { typedef T type; };
template <class T, class U>
using IfMixed =
    typename EnableIf<IsNumber<T>::value && IsNumber<U>::value && !(IsSame<T, U>::value && IsSame<T, float>::value),
                      double>::type;
}  // namespace hostcuda

HOSTCUDA_MATH1(sin) HOSTCUDA_MATH1(cos) HOSTCUDA_MATH1(tan) HOSTCUDA_MATH1(asin) HOSTCUDA_MATH1(acos)
HOSTCUDA_MATH1(atan) HOSTCUDA_MATH1(sinh) HOSTCUDA_MATH1(cosh) HOSTCUDA_MATH1(tanh) HOSTCUDA_MATH1(asinh)
HOSTCUDA_MATH1(acosh) HOSTCUDA_MATH1(atanh) HOSTCUDA_MATH1(exp) HOSTCUDA_MATH1(exp2) HOSTCUDA_MATH1(expm1)
HOSTCUDA_MATH1(log) HOSTCUDA_MATH1(log2) HOSTCUDA_MATH1(log10) HOSTCUDA_MATH1(log1p) HOSTCUDA_MATH1(logb)
HOSTCUDA_MATH1(sqrt) HOSTCUDA_MATH1(cbrt) HOSTCUDA_MATH1(floor) HOSTCUDA_MATH1(ceil) HOSTCUDA_MATH1(trunc)
HOSTCUDA_MATH1(rint) HOSTCUDA_MATH1(nearbyint) HOSTCUDA_MATH1(round) HOSTCUDA_MATH1(fabs) HOSTCUDA_MATH1(erf)
HOSTCUDA_MATH2(atan2) HOSTCUDA_MATH2(hypot) HOSTCUDA_MATH2(pow) HOSTCUDA_MATH2(fmod) HOSTCUDA_MATH2(remainder)
HOSTCUDA_MATH2(copysign) HOSTCUDA_MATH2(nextafter) HOSTCUDA_MATH2(fmin) HOSTCUDA_MATH2(fmax) HOSTCUDA_MATH2(fdim)
#undef HOSTCUDA_MATH1
#undef HOSTCUDA_MATH2

extern "C" {
double ldexp(double, int) noexcept;
float ldexpf(float, int) noexcept;
double scalbn(double, int) noexcept;
float scalbnf(float, int) noexcept;
double frexp(double, int*) noexcept;
float frexpf(float, int*) noexcept;
double modf(double, double*) noexcept;
float modff(float, float*) noexcept;
double fma(double, double, double) noexcept;
float fmaf(float, float, float) noexcept;
int abs(int) noexcept;
long labs(long) noexcept;
long long llabs(long long) noexcept;
}
inline float ldexp(float x, int n) { return ldexpf(x, n); }
inline float scalbn(float x, int n) { return scalbnf(x, n); }
inline float frexp(float x, int* n) { return frexpf(x, n); }
inline float modf(float x, float* whole) { return modff(x, whole); }
inline float fma(float x, float y, float z) { return fmaf(x, y, z); }

inline long abs(long x) { return labs(x); }
inline long long abs(long long x) { return llabs(x); }
inline float abs(float x) { return fabsf(x); }
inline double abs(double x) { return fabs(x); }

inline float rsqrtf(float x) { return 1 / sqrtf(x); }
inline double rsqrt(double x) { return 1 / sqrt(x); }
inline float rsqrt(float x) { return rsqrtf(x); }

#define HOSTCUDA_CLASSIFY(name)                                       \
    inline bool name(float x) { return __builtin_##name(x); }         \
    inline bool name(double x) { return __builtin_##name(x); }        \
    template <class T>                                                \
    inline auto name(T x) -> decltype(hostcuda::IfInteger<T>(), true) { \
        return __builtin_##name(double(x));                           \
    }
HOSTCUDA_CLASSIFY(isnan)
HOSTCUDA_CLASSIFY(isinf)
HOSTCUDA_CLASSIFY(isfinite)
HOSTCUDA_CLASSIFY(signbit)
#undef HOSTCUDA_CLASSIFY

#define HOSTCUDA_MIN_MAX(T, A, B)                                     \
    inline T min(A a, B b) { T x = a, y = b; return x < y ? x : y; }  \
    inline T max(A a, B b) { T x = a, y = b; return x > y ? x : y; }
HOSTCUDA_MIN_MAX(int, int, int)
HOSTCUDA_MIN_MAX(unsigned, unsigned, unsigned)
HOSTCUDA_MIN_MAX(unsigned, int, unsigned)
HOSTCUDA_MIN_MAX(unsigned, unsigned, int)
HOSTCUDA_MIN_MAX(long, long, long)
HOSTCUDA_MIN_MAX(unsigned long, unsigned long, unsigned long)
HOSTCUDA_MIN_MAX(unsigned long, long, unsigned long)
HOSTCUDA_MIN_MAX(unsigned long, unsigned long, long)
HOSTCUDA_MIN_MAX(long long, long long, long long)
HOSTCUDA_MIN_MAX(unsigned long long, unsigned long long, unsigned long long)
HOSTCUDA_MIN_MAX(unsigned long long, long long, unsigned long long)
HOSTCUDA_MIN_MAX(unsigned long long, unsigned long long, long long)
#undef HOSTCUDA_MIN_MAX
// Of floating-point numbers they are fmin and fmax: the other one where one is NaN.
#define HOSTCUDA_MIN_MAX(T, A, B)                                     \
    inline T min(A a, B b) { return fmin(T(a), T(b)); }               \
    inline T max(A a, B b) { return fmax(T(a), T(b)); }
HOSTCUDA_MIN_MAX(float, float, float)
HOSTCUDA_MIN_MAX(double, double, double)
HOSTCUDA_MIN_MAX(double, float, double)
HOSTCUDA_MIN_MAX(double, double, float)
#undef HOSTCUDA_MIN_MAX

// What CuPy's kernels use of CCCL's cuda::std, whose own headers ask for more than g++ has.
#pragma once

namespace cuda {
namespace std {

template <class T, T given> struct integral_constant { static constexpr T value = given; };
typedef integral_constant<bool, true> true_type;
typedef integral_constant<bool, false> false_type;
template <class T, class U> struct is_same : integral_constant<bool, hostcuda::IsSame<T, U>::value> {};
template <bool condition, class T = void> using enable_if = hostcuda::EnableIf<condition, T>;
template <bool condition, class T, class U> struct conditional { typedef T type; };
template <class T, class U> struct conditional<false, T, U> { typedef U type; };
template <class T> struct remove_reference { typedef T type; };
template <class T> struct remove_reference<T&> { typedef T type; };
template <class T> struct remove_reference<T&&> { typedef T type; };
template <class T> struct is_signed : integral_constant<bool, hostcuda::IsNumber<T>::value && (T(-1) < T(0))> {};
template <class T> struct is_unsigned : integral_constant<bool, hostcuda::IsNumber<T>::value && !(T(-1) < T(0))> {};

template <class T> constexpr T&& forward(typename remove_reference<T>::type& value) { return static_cast<T&&>(value); }
template <class T> constexpr typename remove_reference<T>::type&& move(T&& value) {
    return static_cast<typename remove_reference<T>::type&&>(value);
}

template <class T, T... values> struct integer_sequence {};
template <size_t... values> using index_sequence = integer_sequence<size_t, values...>;
template <size_t count> using make_index_sequence = integer_sequence<size_t, __integer_pack(count)...>;

template <class T>
constexpr T byteswap(T value) {
    static_assert(sizeof(T) <= 8, "byteswap: expected an integer");
    if constexpr (sizeof(T) == 1) return value;
    if constexpr (sizeof(T) == 2) return T(__builtin_bswap16(value));
    if constexpr (sizeof(T) == 4) return T(__builtin_bswap32(value));
    if constexpr (sizeof(T) == 8) return T(__builtin_bswap64(value));
}
template <class To, class From> inline To bit_cast(const From& from) { return hostcuda::bits_as<To>(from); }

typedef signed char int8_t;
typedef unsigned char uint8_t;
typedef short int16_t;
typedef unsigned short uint16_t;
typedef int int32_t;
typedef unsigned uint32_t;
typedef long int64_t;
typedef unsigned long uint64_t;
typedef unsigned long uintptr_t;
typedef long intptr_t;

}  // namespace std
}  // namespace cuda

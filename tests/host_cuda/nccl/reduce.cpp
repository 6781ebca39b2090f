// Reductions of every datatype, one element after the other.
#include "reduce.h"

#include <cstring>

namespace host_nccl {
namespace {

using Float16 = _Float16;

// bfloat16, which g++ 12 has no arithmetic for: in float32, rounded to nearest even.
struct Bfloat16 {
    uint16_t bits;

    Bfloat16() = default;
    Bfloat16(float value) {
        uint32_t wide;
        memcpy(&wide, &value, sizeof(wide));
        if (value != value)
            bits = 0x7fff;
        else
            bits = uint16_t((wide + 0x7fff + (wide >> 16 & 1)) >> 16);
    }
    operator float() const {
        uint32_t wide = uint32_t(bits) << 16;
        float value;
        memcpy(&value, &wide, sizeof(value));
        return value;
    }
};

// Calls function with a value of the C++ type of `datatype`.
template <class Function>
void with_type(uint32_t datatype, Function function) {
    switch (datatype) {
        case ncclInt8: return function(int8_t());
        case ncclUint8: return function(uint8_t());
        case ncclInt32: return function(int32_t());
        case ncclUint32: return function(uint32_t());
        case ncclInt64: return function(int64_t());
        case ncclUint64: return function(uint64_t());
        case ncclFloat16: return function(Float16());
        case ncclFloat32: return function(float());
        case ncclFloat64: return function(double());
        case ncclBfloat16: return function(Bfloat16());
    }
}

constexpr bool is_floating(uint32_t datatype) { return datatype >= ncclFloat16 && datatype <= ncclBfloat16; }

// Integers wrap around.
template <class T>
T add(T a, T b) {
    return T(a + b);
}
int32_t add(int32_t a, int32_t b) { return int32_t(uint32_t(a) + uint32_t(b)); }
int64_t add(int64_t a, int64_t b) { return int64_t(uint64_t(a) + uint64_t(b)); }
template <class T>
T multiply(T a, T b) {
    return T(a * b);
}
int32_t multiply(int32_t a, int32_t b) { return int32_t(uint32_t(a) * uint32_t(b)); }
int64_t multiply(int64_t a, int64_t b) { return int64_t(uint64_t(a) * uint64_t(b)); }

}  // namespace

size_t size_of(uint32_t datatype) {
    size_t size = 0;
    with_type(datatype, [&](auto zero) { size = sizeof(zero); });
    return size;
}

void reduce_into(void* total, const void* values, size_t count, uint32_t datatype, uint32_t op) {
    with_type(datatype, [&](auto zero) {
        using T = decltype(zero);
        auto* a = static_cast<T*>(total);
        auto* b = static_cast<const T*>(values);
        switch (op) {
            case ncclSum:
            case ncclAvg:
                for (size_t i = 0; i < count; ++i) a[i] = add(a[i], b[i]);
                break;
            case ncclProd:
                for (size_t i = 0; i < count; ++i) a[i] = multiply(a[i], b[i]);
                break;
            case ncclMax:
                for (size_t i = 0; i < count; ++i) a[i] = b[i] > a[i] ? b[i] : a[i];
                break;
            case ncclMin:
                for (size_t i = 0; i < count; ++i) a[i] = b[i] < a[i] ? b[i] : a[i];
                break;
        }
    });
}

void scale_for_average(void* values, size_t count, uint32_t datatype, int world_size) {
    if (!is_floating(datatype)) return;
    with_type(datatype, [&](auto zero) {
        using T = decltype(zero);
        auto* a = static_cast<T*>(values);
        T scale = T(1.0 / world_size);
        for (size_t i = 0; i < count; ++i) a[i] = T(a[i] * scale);
    });
}

void divide_for_average(void* total, size_t count, uint32_t datatype, int world_size) {
    if (is_floating(datatype)) return;
    with_type(datatype, [&](auto zero) {
        using T = decltype(zero);
        auto* a = static_cast<T*>(total);
        for (size_t i = 0; i < count; ++i) a[i] = T(a[i] / T(world_size));
    });
}

}  // namespace host_nccl

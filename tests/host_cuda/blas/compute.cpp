// The arithmetic of products, in float or double.
#include "compute.h"

#include <library_types.h>

#include <algorithm>
#include <cstring>
#include <vector>

namespace host_cublas {
namespace {

// -- matrices of any supported type, as one type to compute in

float float_of_bfloat16(uint16_t bits) {
    uint32_t wide = uint32_t(bits) << 16;
    float value;
    memcpy(&value, &wide, sizeof(value));
    return value;
}

uint16_t bfloat16_of(float value) {
    if (value != value) return 0x7fff;
    uint32_t wide;
    memcpy(&wide, &value, sizeof(wide));
    return uint16_t((wide + 0x7fff + (wide >> 16 & 1)) >> 16);
}

template <class T>
T load(const void* matrix, int type, size_t i) {
    switch (type) {
        case CUDA_R_16F: return T(static_cast<const _Float16*>(matrix)[i]);
        case CUDA_R_16BF: return T(float_of_bfloat16(static_cast<const uint16_t*>(matrix)[i]));
        case CUDA_R_32F: return T(static_cast<const float*>(matrix)[i]);
        default: return T(static_cast<const double*>(matrix)[i]);
    }
}

template <class T>
void store(void* matrix, int type, size_t i, T value) {
    switch (type) {
        case CUDA_R_16F: static_cast<_Float16*>(matrix)[i] = _Float16(value); break;
        case CUDA_R_16BF: static_cast<uint16_t*>(matrix)[i] = bfloat16_of(float(value)); break;
        case CUDA_R_32F: static_cast<float*>(matrix)[i] = float(value); break;
        default: static_cast<double*>(matrix)[i] = double(value); break;
    }
}

// -- the product: sums in the order of k, many rows at once

template <class T>
void compute_as(const Product& product) {
    int64_t m = product.m, n = product.n, k = product.k;
    T alpha = T(product.alpha), beta = T(product.beta);
    // With a factor of zero, what it multiplies is not even read.
    if (alpha == 0) k = 0;
    std::vector<T> a(m * k), total(m);
    for (int64_t p = 0; p < k; ++p)
        for (int64_t i = 0; i < m; ++i) a[p * m + i] = load<T>(product.a.data, product.a.type, product.a.at(i, p));
    void* c = const_cast<void*>(product.c.data);
    for (int64_t j = 0; j < n; ++j) {
        std::fill(total.begin(), total.end(), T(0));
        for (int64_t p = 0; p < k; ++p) {
            T factor = load<T>(product.b.data, product.b.type, product.b.at(p, j));
            for (int64_t i = 0; i < m; ++i) total[i] += a[p * m + i] * factor;
        }
        for (int64_t i = 0; i < m; ++i) {
            int64_t at = j * product.c.stride + i;
            T value = alpha * total[i];
            if (beta != 0) value += beta * load<T>(c, product.c.type, at);
            store(c, product.c.type, at, value);
        }
    }
}

}  // namespace

size_t size_of(int type) {
    switch (type) {
        case CUDA_R_16F: return 2;
        case CUDA_R_16BF: return 2;
        case CUDA_R_32F: return 4;
        case CUDA_R_64F: return 8;
        default: return 0;
    }
}

void compute(const Product& product) { product.doubles ? compute_as<double>(product) : compute_as<float>(product); }

}  // namespace host_cublas

// Matrix products and sums on the host, in the order of a plain loop.

#pragma once

#include <cstddef>
#include <cstdint>

namespace host_cublas {

// Bytes of an element of a cudaDataType_t; 0 for one that is not known here.
size_t size_of(int type);

// Column-major, `stride` elements from one column to the next.
struct Matrix {
    const void* data;
    int type;
    int64_t stride;
    bool transposed;

    int64_t at(int64_t row, int64_t column) const { return transposed ? row * stride + column : column * stride + row; }
};

struct Product {
    int m, n, k;
    Matrix a, b, c;
    double alpha, beta;
    bool doubles;  // computes in double
};

// c = alpha a b + beta c
void compute(const Product& product);

}  // namespace host_cublas

// libcublas.so.13 on the host: matrix products and what CuPy's handles need; the rest says that it is not supported.
//
// cuBLAS' header is in no small package: the types here are those of its documentation.

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <library_types.h>

#include <algorithm>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <vector>

#include "compute.h"

using namespace host_cublas;

enum Status {
    kSuccess = 0,
    kNotInitialized = 1,
    kInvalidValue = 7,
    kExecutionFailed = 13,
    kNotSupported = 15,
};

struct cublasContext {
    int device;
    cudaStream_t stream = nullptr;
    int math_mode = 0;
};

namespace {

enum Operation { kPlain = 0, kTransposed = 1, kConjugated = 2 };
constexpr int kHost = 0;  // the pointer mode
enum ComputeType {
    kCompute32F = 68,
    kCompute32FPedantic = 69,
    kCompute64F = 70,
    kCompute64FPedantic = 71,
    kCompute32FFast16F = 74,
    kCompute32FFast16BF = 75,
    kCompute32FFastTF32 = 77,
};

constexpr int kVersion = 130200;

Status refuse(Status status, const char* format, ...) {
    va_list arguments;
    va_start(arguments, format);
    fprintf(stderr, "host_cublas: ");
    vfprintf(stderr, format, arguments);
    fprintf(stderr, "\n");
    va_end(arguments);
    return status;
}

#define TRY(call)                                             \
    do {                                                      \
        if (Status refused = (call); refused) return refused; \
    } while (0)

std::mutex handles_lock;
std::set<cublasContext*>& handles() {
    static auto* all = new std::set<cublasContext*>;
    return *all;
}

Status check_handle(cublasContext* handle) {
    std::lock_guard<std::mutex> hold(handles_lock);
    return handles().count(handle) ? kSuccess : refuse(kNotInitialized, "no such handle");
}

// -- what cuBLAS requires

bool is_device_memory(const void* address, int device) {
    cudaPointerAttributes attributes;
    if (cudaPointerGetAttributes(&attributes, address) != cudaSuccess) return false;
    if (attributes.type == cudaMemoryTypeUnregistered) return false;
    return attributes.type == cudaMemoryTypeHost || attributes.device == device;
}

Status check_matrix(const char* call, const char* name, const Matrix& matrix, int64_t rows, int64_t columns,
                    int device) {
    if (matrix.transposed) std::swap(rows, columns);
    if (matrix.stride < std::max<int64_t>(1, rows))
        return refuse(kInvalidValue, "%s: ld%s is %lld for %lld rows", call, name, (long long)matrix.stride,
                      (long long)rows);
    if (!rows || !columns) return kSuccess;
    uint64_t nbytes = ((columns - 1) * matrix.stride + rows) * size_of(matrix.type);
    auto* first = static_cast<const char*>(matrix.data);
    if (!is_device_memory(first, device) || !is_device_memory(first + nbytes - 1, device))
        return refuse(kInvalidValue, "%s: %s at %p of %llu bytes is not memory of device %d", call, name, matrix.data,
                      (unsigned long long)nbytes, device);
    return kSuccess;
}

Status check_product(const char* call, const Product& product, int device) {
    TRY(check_matrix(call, "a", product.a, product.m, product.k, device));
    TRY(check_matrix(call, "b", product.b, product.k, product.n, device));
    return check_matrix(call, "c", product.c, product.m, product.n, device);
}

// A factor of the computing type, on the host.
Status read_factor(const char* call, const void* factor, bool doubles, double* value) {
    if (!factor) return refuse(kInvalidValue, "%s: alpha or beta is null", call);
    cudaPointerAttributes attributes;
    bool is_known = cudaPointerGetAttributes(&attributes, factor) == cudaSuccess;
    if (is_known && attributes.type == cudaMemoryTypeDevice)
        return refuse(kInvalidValue, "%s: alpha or beta is on the device, and the pointer mode says host", call);
    *value = doubles ? *static_cast<const double*>(factor) : double(*static_cast<const float*>(factor));
    return kSuccess;
}

Status check_operations(const char* call, int transa, int transb) {
    for (int operation : {transa, transb})
        if (operation < kPlain || operation > kConjugated)
            return refuse(kInvalidValue, "%s: operation %d", call, operation);
    return kSuccess;
}

Status check_device(const char* call, const cublasContext* handle) {
    int device = -1;
    cudaGetDevice(&device);
    if (device == handle->device) return kSuccess;
    return refuse(kExecutionFailed, "%s: the handle is of device %d, the current one is %d", call, handle->device,
                  device);
}

using Task = std::function<void()>;

void run_task(void* data) {
    std::unique_ptr<Task> task(static_cast<Task*>(data));
    (*task)();
}

Status launch(const char* call, cublasContext* handle, Task task) {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    if (cudaStreamIsCapturing(handle->stream, &status) != cudaSuccess || status != cudaStreamCaptureStatusNone)
        return refuse(kNotSupported, "%s: within a capture", call);
    auto queued = std::make_unique<Task>(std::move(task));
    if (cudaError_t error = cudaLaunchHostFunc(handle->stream, run_task, queued.get()); error != cudaSuccess)
        return refuse(kExecutionFailed, "%s: %s", call, cudaGetErrorString(error));
    queued.release();
    return kSuccess;
}

struct Operand {
    const void* data;
    int type;
    int64_t stride, batch_stride;
};

Status make_product(const char* call, cublasContext* handle, int transa, int transb, int m, int n, int k,
                    const void* alpha, Operand a, Operand b, const void* beta, Operand c, int batch, bool doubles,
                    Product* product) {
    TRY(check_handle(handle));
    TRY(check_device(call, handle));
    TRY(check_operations(call, transa, transb));
    for (const Operand& operand : {a, b, c})
        if (!size_of(operand.type)) return refuse(kNotSupported, "%s: type %d", call, operand.type);
    if (m < 0 || n < 0 || k < 0 || batch < 0)
        return refuse(kInvalidValue, "%s: %d x %d x %d, a batch of %d", call, m, n, k, batch);
    *product = {m,
                n,
                k,
                {a.data, a.type, a.stride, transa != kPlain},
                {b.data, b.type, b.stride, transb != kPlain},
                {c.data, c.type, c.stride, false},
                0,
                0,
                doubles};
    TRY(read_factor(call, alpha, doubles, &product->alpha));
    return read_factor(call, beta, doubles, &product->beta);
}

Status multiply_batch(const char* call, cublasContext* handle, int transa, int transb, int m, int n, int k,
                      const void* alpha, Operand a, Operand b, const void* beta, Operand c, int batch, bool doubles) {
    Product first;
    TRY(make_product(call, handle, transa, transb, m, n, k, alpha, a, b, beta, c, batch, doubles, &first));
    std::vector<Product> products(batch, first);
    for (int i = 0; i < batch; ++i) {
        auto move = [&](Matrix& matrix, const Operand& operand) {
            matrix.data =
                static_cast<const char*>(operand.data) + i * operand.batch_stride * int64_t(size_of(operand.type));
        };
        move(products[i].a, a);
        move(products[i].b, b);
        move(products[i].c, c);
        TRY(check_product(call, products[i], handle->device));
    }
    return launch(call, handle, [products] {
        for (const Product& product : products) compute(product);
    });
}

// Whether these types go with the computing type; `*doubles`: it is double.
Status check_compute(const char* call, int compute, int a, int b, int c, bool* doubles) {
    *doubles = compute == kCompute64F || compute == kCompute64FPedantic;
    bool floats = compute == kCompute32F || compute == kCompute32FPedantic || compute == kCompute32FFast16F ||
                  compute == kCompute32FFast16BF || compute == kCompute32FFastTF32;
    bool halves = (a == CUDA_R_16F || a == CUDA_R_16BF) && (c == a || c == CUDA_R_32F);
    bool fits = a == b && (*doubles ? a == CUDA_R_64F && c == a : halves || (a == CUDA_R_32F && c == a));
    if (fits && (*doubles || floats)) return kSuccess;
    return refuse(kNotSupported, "%s: types %d, %d, %d with computing type %d", call, a, b, c, compute);
}

}  // namespace

extern "C" {

Status cublasCreate_v2(cublasContext** handle) {
    if (!handle) return kInvalidValue;
    int device = 0;
    if (cudaGetDevice(&device) != cudaSuccess) return refuse(kNotInitialized, "cublasCreate: no device");
    *handle = new cublasContext{device};
    std::lock_guard<std::mutex> hold(handles_lock);
    handles().insert(*handle);
    return kSuccess;
}

Status cublasDestroy_v2(cublasContext* handle) {
    TRY(check_handle(handle));
    std::lock_guard<std::mutex> hold(handles_lock);
    handles().erase(handle);
    delete handle;
    return kSuccess;
}

Status cublasGetVersion_v2(cublasContext*, int* version) {
    if (!version) return kInvalidValue;
    *version = kVersion;
    return kSuccess;
}

Status cublasSetStream_v2(cublasContext* handle, cudaStream_t stream) {
    TRY(check_handle(handle));
    handle->stream = stream;
    return kSuccess;
}

Status cublasGetStream_v2(cublasContext* handle, cudaStream_t* stream) {
    TRY(check_handle(handle));
    *stream = handle->stream;
    return kSuccess;
}

Status cublasSetPointerMode_v2(cublasContext* handle, int mode) {
    TRY(check_handle(handle));
    return mode == kHost ? kSuccess : refuse(kNotSupported, "cublasSetPointerMode: %d", mode);
}

Status cublasGetPointerMode_v2(cublasContext* handle, int* mode) {
    TRY(check_handle(handle));
    *mode = kHost;
    return kSuccess;
}

Status cublasSetMathMode(cublasContext* handle, int mode) {
    TRY(check_handle(handle));
    handle->math_mode = mode;
    return kSuccess;
}

Status cublasGetMathMode(cublasContext* handle, int* mode) {
    TRY(check_handle(handle));
    *mode = handle->math_mode;
    return kSuccess;
}

Status cublasSgemm_v2(cublasContext* handle, int transa, int transb, int m, int n, int k, const float* alpha,
                      const float* a, int lda, const float* b, int ldb, const float* beta, float* c, int ldc) {
    return multiply_batch("cublasSgemm", handle, transa, transb, m, n, k, alpha, {a, CUDA_R_32F, lda, 0},
                          {b, CUDA_R_32F, ldb, 0}, beta, {c, CUDA_R_32F, ldc, 0}, 1, false);
}

Status cublasDgemm_v2(cublasContext* handle, int transa, int transb, int m, int n, int k, const double* alpha,
                      const double* a, int lda, const double* b, int ldb, const double* beta, double* c, int ldc) {
    return multiply_batch("cublasDgemm", handle, transa, transb, m, n, k, alpha, {a, CUDA_R_64F, lda, 0},
                          {b, CUDA_R_64F, ldb, 0}, beta, {c, CUDA_R_64F, ldc, 0}, 1, true);
}

Status cublasSgemmStridedBatched(cublasContext* handle, int transa, int transb, int m, int n, int k, const float* alpha,
                                 const float* a, int lda, long long stride_a, const float* b, int ldb,
                                 long long stride_b, const float* beta, float* c, int ldc, long long stride_c,
                                 int batch) {
    return multiply_batch("cublasSgemmStridedBatched", handle, transa, transb, m, n, k, alpha,
                          {a, CUDA_R_32F, lda, stride_a}, {b, CUDA_R_32F, ldb, stride_b}, beta,
                          {c, CUDA_R_32F, ldc, stride_c}, batch, false);
}

Status cublasDgemmStridedBatched(cublasContext* handle, int transa, int transb, int m, int n, int k,
                                 const double* alpha, const double* a, int lda, long long stride_a, const double* b,
                                 int ldb, long long stride_b, const double* beta, double* c, int ldc,
                                 long long stride_c, int batch) {
    return multiply_batch("cublasDgemmStridedBatched", handle, transa, transb, m, n, k, alpha,
                          {a, CUDA_R_64F, lda, stride_a}, {b, CUDA_R_64F, ldb, stride_b}, beta,
                          {c, CUDA_R_64F, ldc, stride_c}, batch, true);
}

Status cublasSgemmEx(cublasContext* handle, int transa, int transb, int m, int n, int k, const float* alpha,
                     const void* a, int type_a, int lda, const void* b, int type_b, int ldb, const float* beta, void* c,
                     int type_c, int ldc) {
    bool doubles = false;
    TRY(check_compute("cublasSgemmEx", kCompute32F, type_a, type_b, type_c, &doubles));
    return multiply_batch("cublasSgemmEx", handle, transa, transb, m, n, k, alpha, {a, type_a, lda, 0},
                          {b, type_b, ldb, 0}, beta, {c, type_c, ldc, 0}, 1, doubles);
}

Status cublasGemmEx(cublasContext* handle, int transa, int transb, int m, int n, int k, const void* alpha,
                    const void* a, int type_a, int lda, const void* b, int type_b, int ldb, const void* beta, void* c,
                    int type_c, int ldc, int compute, int) {
    bool doubles = false;
    TRY(check_compute("cublasGemmEx", compute, type_a, type_b, type_c, &doubles));
    return multiply_batch("cublasGemmEx", handle, transa, transb, m, n, k, alpha, {a, type_a, lda, 0},
                          {b, type_b, ldb, 0}, beta, {c, type_c, ldc, 0}, 1, doubles);
}

Status cublasGemmStridedBatchedEx(cublasContext* handle, int transa, int transb, int m, int n, int k, const void* alpha,
                                  const void* a, int type_a, int lda, long long stride_a, const void* b, int type_b,
                                  int ldb, long long stride_b, const void* beta, void* c, int type_c, int ldc,
                                  long long stride_c, int batch, int compute, int) {
    bool doubles = false;
    TRY(check_compute("cublasGemmStridedBatchedEx", compute, type_a, type_b, type_c, &doubles));
    return multiply_batch("cublasGemmStridedBatchedEx", handle, transa, transb, m, n, k, alpha,
                          {a, type_a, lda, stride_a}, {b, type_b, ldb, stride_b}, beta, {c, type_c, ldc, stride_c},
                          batch, doubles);
}

}  // extern "C"

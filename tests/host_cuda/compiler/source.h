// The rewriting of preprocessed CUDA C++ into C++ that g++ takes.
#pragma once

#include <string>

// A program after `rewrite`.
struct KernelSource {
    std::string text;
    int num_entries;  // kernels that assembly.h names
};

// Removes __global__ and __launch_bounds__, turns inline PTX into calls of hostcuda::ptx, and appends the exports of
// every kernel that is no template.
//
// Args:
//   preprocessed: the program, preprocessed together with kernel_shim.h.
// Throws std::runtime_error at inline assembly that cannot be rewritten.
KernelSource rewrite(const std::string& preprocessed);

// The finishing of what g++ made of a program: x86-64 assembly in, assembly out.
#pragma once

#include <string>

// Puts the names of kernels into their exports and the size of their shared memory into their attributes, and defines
// dynamic shared memory. With `flushes_subnormals` the module runs with subnormal numbers flushed to zero, which CUDA
// does in single precision only: instructions of double precision are taken out of that mode.
//
// Throws std::runtime_error where a kernel has more static shared memory than a block may have.
std::string finish(const std::string& assembly, int num_entries, bool flushes_subnormals);

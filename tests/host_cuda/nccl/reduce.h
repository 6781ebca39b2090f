// The arithmetic of reductions.

#pragma once

#include "nccl_api.h"

#include <cstddef>
#include <cstdint>

namespace host_nccl {

// Bytes of an element; 0 for a datatype that is not known here.
size_t size_of(uint32_t datatype);

// total[i] = op(total[i], values[i]); the first rank's values are the first total. As NCCL, in the datatype itself.
void reduce_into(void* total, const void* values, size_t count, uint32_t datatype, uint32_t op);

// An average is a sum of values that are scaled first (floating point), or whose sum is divided at the end (integers).
void scale_for_average(void* values, size_t count, uint32_t datatype, int world_size);
void divide_for_average(void* total, size_t count, uint32_t datatype, int world_size);

}  // namespace host_nccl

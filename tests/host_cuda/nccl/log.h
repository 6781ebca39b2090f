// What went wrong, in words, on stderr; and settings.

#pragma once

#include "nccl_api.h"

namespace host_nccl {

// Says why a call fails and returns `result`.
ncclResult_t refuse(ncclResult_t result, const char* format, ...) __attribute__((format(printf, 2, 3)));

// What was refused last, in this process; "" before.
const char* last_refusal();

// Returns what is no success.
#define TRY(call)                                                   \
    do {                                                            \
        if (ncclResult_t refused = (call); refused) return refused; \
    } while (0)

// Whether the environment variable is set to something but 0; `otherwise` where it is not set.
bool flag(const char* variable, bool otherwise);

// The number in the environment variable; `otherwise` where it is not set.
unsigned long long number(const char* variable, unsigned long long otherwise);

}  // namespace host_nccl

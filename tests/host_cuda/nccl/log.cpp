// Messages and settings.
#include "log.h"

#include <unistd.h>

#include <atomic>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace host_nccl {
namespace {

// Who was handed it may read it at any later time: never freed.
std::atomic<const char*> last{""};

}  // namespace

ncclResult_t refuse(ncclResult_t result, const char* format, ...) {
    char text[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof(text), format, arguments);
    va_end(arguments);
    last = strdup(text);
    fprintf(stderr, "host_nccl[%d]: %s (%s)\n", getpid(), text, ncclGetErrorString(result));
    return result;
}

const char* last_refusal() { return last; }

bool flag(const char* variable, bool otherwise) {
    const char* value = getenv(variable);
    return value && *value ? strcmp(value, "0") != 0 : otherwise;
}

unsigned long long number(const char* variable, unsigned long long otherwise) {
    const char* value = getenv(variable);
    return value && *value ? strtoull(value, nullptr, 10) : otherwise;
}

}  // namespace host_nccl

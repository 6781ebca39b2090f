// Instead of CuPy's own, which gives the names of cuda::std to std.
#pragma once
#include <hostcuda_std.h>

namespace std {
using namespace cuda::std;
}

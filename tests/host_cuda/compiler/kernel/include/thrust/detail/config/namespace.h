// Instead of Thrust's own, which asks for all of CCCL's configuration to open a namespace.
#pragma once
#define THRUST_NS_QUALIFIER ::thrust
#define THRUST_NAMESPACE_BEGIN namespace thrust {
#define THRUST_NAMESPACE_END }

// NVRTC has no standard headers: CUDA's own, under the usual name. Defining the types here would clash with it:
// under NVRTC it makes int64_t a long long.

#pragma once

#include <cuda/std/cstdint>

namespace std {
using namespace cuda::std;
}  // namespace std

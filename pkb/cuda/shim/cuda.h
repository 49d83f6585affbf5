// The driver's header declares host functions, which NVRTC refuses. Device code needs one type of it: a TMA
// descriptor, filled on the host and taken as `const __grid_constant__ CUtensorMap`.

#pragma once

struct alignas(64) CUtensorMap {
  unsigned long long opaque[16];
};
static_assert(sizeof(CUtensorMap) == 128, "size of the driver's CUtensorMap");

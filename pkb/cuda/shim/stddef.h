// NVRTC has no standard headers; size_t and ptrdiff_t are built in.

#pragma once

namespace std {
using ::ptrdiff_t;
using ::size_t;
}  // namespace std

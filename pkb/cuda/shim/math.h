// NVRTC has no standard headers; CUDA's mathematical functions are built in.

#pragma once

// NVRTC has no standard headers; printf, assert and malloc are built in for device code.

#pragma once

// CUDA's compiler NVRTC, loaded by name. Nothing of CUDA's is needed to build the library.
// Prototypes are those of nvrtc.h 13.0.
#pragma once

#include <string>

namespace planner::cuda {

// Why there is no compiler, with what to do; empty where there is one.
const std::string& why_no_compiler();

// CUDA C++ compiled for a device's compute capability (90 for 9.0): an image that the driver loads.
// Operations of IEEE 754 are as it has them. Throws std::runtime_error with the compiler's own
// words.
std::string compiled(const std::string& source, int capability);

}  // namespace planner::cuda

// planner.fused::DirectConv and KernelGradient: `fused/convolution.h` as operators, on the CPU.
#pragma once

#include <vector>

#include "ort_abi.h"

namespace planner::fused {

std::vector<ort::CustomOp*> convolution_operators();

}  // namespace planner::fused

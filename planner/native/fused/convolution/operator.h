// planner.fused::DirectConv, KernelGradient and TurnedKernel: `convolution.h` as operators, on the CPU.
#pragma once

#include <vector>

#include "ort_abi.h"

namespace planner::fused {

std::vector<ort::CustomOp*> convolution_operators();

}  // namespace planner::fused

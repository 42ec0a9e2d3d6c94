// planner.fused::DirectConv: a Conv of float32 by `fused/convolution.h`, on the CPU.
#pragma once

#include <vector>

#include "ort_abi.h"

namespace planner::fused {

std::vector<ort::CustomOp*> convolution_operators();  // DirectConv and KernelGradient

}  // namespace planner::fused

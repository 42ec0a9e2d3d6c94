// planner.fused::DirectConv: a Conv of float32 by `fused/convolution.h`, on the CPU.
#pragma once

#include "ort_abi.h"

namespace planner::fused {

ort::CustomOp* convolution_operator();

}  // namespace planner::fused

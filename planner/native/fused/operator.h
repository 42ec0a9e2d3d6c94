// planner.fused::Pointwise as ONNX Runtime takes it.
#pragma once

#include "common.h"

namespace planner::fused {

// The domain with the operator, made once and kept.
ort::CustomOpDomain* domain();

}  // namespace planner::fused

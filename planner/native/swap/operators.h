// The operators as ONNX Runtime takes them.
#pragma once

#include "common.h"

namespace planner {

// A domain with the operators under `settings`, made once for equal settings and kept.
ort::CustomOpDomain* domain_of(const Settings& settings);

}  // namespace planner

// What ONNX Runtime says of a tensor's type and dims.
#pragma once

#include <memory>
#include <vector>

#include "common.h"

namespace planner {

inline int type_of(const ort::TypeAndShape* info) {
  int type = ort::kUndefined;
  succeed(api->GetTensorElementType(info, &type));
  return type;
}

inline std::vector<int64_t> dims_of(const ort::TypeAndShape* info) {  // -1 where a dim is not known
  size_t rank = 0;
  succeed(api->GetDimensionsCount(info, &rank));
  std::vector<int64_t> dims(rank);
  succeed(api->GetDimensions(info, dims.data(), rank));
  return dims;
}

using Info = std::unique_ptr<ort::TypeAndShape, void (*)(ort::TypeAndShape*)>;

}  // namespace planner

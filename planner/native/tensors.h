// What ONNX Runtime says of a tensor's type and dims.
#pragma once

#include <memory>
#include <string>
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

inline ort::TypeAndShape* input_info(ort::ShapeContext* context, size_t i = 0) {
  ort::TypeAndShape* found = nullptr;  // the context's own
  succeed(api->ShapeInferContext_GetInputTypeShape(context, i, &found));
  return found;
}

using Info = std::unique_ptr<ort::TypeAndShape, void (*)(ort::TypeAndShape*)>;

// A dim with a name counts as unknown.
inline void set_output(ort::ShapeContext* context, size_t i, int type,
                       const std::vector<int64_t>& dims,
                       const std::vector<std::string>& names = {}) {
  ort::TypeAndShape* made = nullptr;
  succeed(api->CreateTensorTypeAndShapeInfo(&made));
  Info info(made, api->ReleaseTensorTypeAndShapeInfo);
  succeed(api->SetTensorElementType(made, type));
  succeed(api->SetDimensions(made, dims.data(), dims.size()));
  std::vector<const char*> texts;
  for (auto& name : names) texts.push_back(name.c_str());
  if (!texts.empty()) succeed(api->SetSymbolicDimensions(made, texts.data(), texts.size()));
  succeed(api->ShapeInferContext_SetOutputTypeShape(context, i, made));
}

}  // namespace planner

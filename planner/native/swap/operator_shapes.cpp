// What the operators' outputs are, before a run.
#include "swap/operator_shapes.h"

#include <atomic>
#include <string>
#include <vector>

#include "tensors.h"

namespace planner {
namespace {

std::vector<int64_t> attribute(ort::ShapeContext* context, const char* name, int kind) {
  const ort::Attribute* found = nullptr;
  succeed(api->ShapeInferContext_GetAttribute(context, name, &found));
  std::vector<int64_t> values(64);
  size_t bytes = 0;
  succeed(api->ReadOpAttr(found, kind, values.data(), values.size() * sizeof values[0], &bytes));
  values.resize(bytes / sizeof values[0]);
  return values;
}

// y's dims are told by names that no other tensor has: ONNX Runtime then gives y a buffer of its
// own, not that of an earlier tensor of y's shape, so that Hold keeps it. z's dims are those of
// SwapInDone's attribute `shape`, which need not be there, or of the file's value_info.
void set_unequal_dims(ort::ShapeContext* context, int type, size_t rank) {
  static std::atomic<int64_t> number{0};
  must(rank, "a tensor without dims is not swapped");
  std::vector<std::string> names(rank);
  for (auto& name : names) name = "planner_swap_" + std::to_string(number++);
  set_output(context, 0, type, std::vector<int64_t>(rank, -1), names);
}

int dtype_of(ort::ShapeContext* context) {
  return int(attribute(context, "dtype", ort::kAttributeInt).at(0));
}

}  // namespace

void infer_token(ort::ShapeContext* context) { set_output(context, 0, ort::kUint8, {1}); }

void infer_swap_in(ort::ShapeContext* context) {
  set_unequal_dims(context, dtype_of(context),
                   attribute(context, "shape", ort::kAttributeInts).size());
}

void infer_store_to(ort::ShapeContext* context) {
  set_output(context, 0, dtype_of(context), attribute(context, "shape", ort::kAttributeInts));
}

void infer_load_in(ort::ShapeContext* context) {
  ort::TypeAndShape* h = input_info(context);
  set_unequal_dims(context, type_of(h), dims_of(h).size());
}

void infer_swap_in_done(ort::ShapeContext* context) {
  std::vector<int64_t> dims;
  try {
    dims = attribute(context, "shape", ort::kAttributeInts);
  } catch (const std::exception&) {  // it is not there
    return succeed(api->ShapeInferContext_SetOutputTypeShape(context, 0, input_info(context)));
  }
  set_output(context, 0, type_of(input_info(context)), dims);
}

}  // namespace planner

// What ONNX Runtime is told of the operators' outputs: element types and dims.
#pragma once

#include "common.h"

namespace planner {

void infer_token(ort::ShapeContext* context);
void infer_swap_in(ort::ShapeContext* context);
void infer_store_to(ort::ShapeContext* context);
void infer_load_in(ort::ShapeContext* context);
void infer_swap_in_done(ort::ShapeContext* context);

}  // namespace planner

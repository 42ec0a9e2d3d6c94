#include "fused/convolution_operator.h"

#include "fused/convolution.h"
#include "fused/node.h"

namespace planner::fused {
namespace {

Window window_for(bool is_gradient, const std::string& text) {
  Window window = parse_window(text);
  check(window.is_gradient() == is_gradient, "'" + text + "' is no window of this operator");
  return window;
}

void infer_result(bool is_gradient, ort::ShapeContext* context) {
  Dims dims[2];
  for (size_t i = 0; i < 2; i++) {
    ort::TypeAndShape* info = nullptr;  // the context's own
    succeed(api->ShapeInferContext_GetInputTypeShape(context, i, &info));
    dims[i] = planner::dims_of(info);
  }
  set_output(context, 0, ort::kFloat,
             result_dims(window_for(is_gradient, text_of(context, "window")), dims[0], dims[1]));
}

void compute_result(const Window& window, ort::KernelContext* context) {
  Value image = input_value(context, 0), kernel = input_value(context, 1);
  const Dims dims = result_dims(window, image.dims, kernel.dims);
  const ort::Value* third = nullptr;
  if (!window.is_gradient()) succeed(api->KernelContext_GetInput(context, 2, &third));
  const Value bias = third ? input_value(context, 2) : Value{};
  check(!third || bias.dims == Dims{dims[1]}, "DirectConv: the bias has not a number for each filter");
  void* result = output_of(context, 0, dims);
  convolve(window, image.dims, static_cast<const float*>(image.data), kernel.dims,
           static_cast<const float*>(kernel.data), static_cast<const float*>(bias.data),
           static_cast<float*>(result), parallel_of(context));
}

template <bool kIsGradient>
ort::CustomOp* made() {
  auto op = new ort::CustomOp{};  // ONNX Runtime keeps it
  op->version = ort::kApiVersion;
  op->GetName = [](const ort::CustomOp*) { return kIsGradient ? "KernelGradient" : "DirectConv"; };
  op->GetExecutionProviderType = [](const ort::CustomOp*) { return "CPUExecutionProvider"; };
  op->GetInputTypeCount = [](const ort::CustomOp*) -> size_t { return kIsGradient ? 2 : 3; };
  op->GetOutputTypeCount = [](const ort::CustomOp*) -> size_t { return 1; };
  op->GetInputType =
      op->GetOutputType = [](const ort::CustomOp*, size_t) { return ort::kFloat; };
  op->GetInputCharacteristic = [](const ort::CustomOp*, size_t i) {
    return i == 2 ? ort::kOptional : ort::kRequired;  // the bias
  };
  op->GetOutputCharacteristic = [](const ort::CustomOp*, size_t) { return ort::kRequired; };
  op->GetInputMemoryType = [](const ort::CustomOp*, size_t) { return ort::kMemoryDefault; };
  op->GetVariadicInputMinArity =
      op->GetVariadicOutputMinArity = [](const ort::CustomOp*) { return 1; };
  op->GetVariadicInputHomogeneity =
      op->GetVariadicOutputHomogeneity = [](const ort::CustomOp*) { return 1; };
  op->GetStartVersion = op->GetEndVersion = [](const ort::CustomOp*) { return 1; };
  op->CreateKernelV2 = [](const ort::CustomOp*, const ort::Api*, const ort::KernelInfo* info,
                          void** made) {
    return guarded([&] { *made = new Window(window_for(kIsGradient, text_of(info, "window"))); });
  };
  op->KernelComputeV2 = [](void* kernel, ort::KernelContext* context) {
    return guarded([&] { compute_result(*static_cast<Window*>(kernel), context); });
  };
  op->KernelDestroy = [](void* kernel) { delete static_cast<Window*>(kernel); };
  op->InferOutputShapeFn = [](const ort::CustomOp*, ort::ShapeContext* context) {
    return guarded([&] { infer_result(kIsGradient, context); });
  };
  return op;
}

}  // namespace

std::vector<ort::CustomOp*> convolution_operators() { return {made<false>(), made<true>()}; }

}  // namespace planner::fused

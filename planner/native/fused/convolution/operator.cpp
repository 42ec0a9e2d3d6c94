#include "fused/convolution/operator.h"

#include "fused/convolution/convolution.h"
#include "fused/node.h"

namespace planner::fused {
namespace {

Window window_for(bool is_gradient, const std::string& text) {
  Window window = parse_window(text);
  check(window.is_gradient() == is_gradient, "'" + text + "' is no window of this operator");
  return window;
}

void infer_result(bool is_gradient, ort::ShapeContext* context) {
  const Window window = window_for(is_gradient, text_of(context, "window"));
  const Dims image = planner::dims_of(input_info(context, 0));
  const Dims kernel = planner::dims_of(input_info(context, 1));
  set_output(context, 0, ort::kFloat, result_dims(window, image, kernel));
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
struct Windowed {
  using Kernel = Window;
  static constexpr const char* kName = kIsGradient ? "KernelGradient" : "DirectConv";
  static constexpr size_t kInputs = kIsGradient ? 2 : 3;
  static Kernel make(const ort::KernelInfo* info) {
    return window_for(kIsGradient, text_of(info, "window"));
  }
  static void infer(ort::ShapeContext* context) { infer_result(kIsGradient, context); }
  static void compute(const Kernel& window, ort::KernelContext* context) {
    compute_result(window, context);
  }
};

struct TurnedKernel {
  struct Kernel {};
  static constexpr const char* kName = "TurnedKernel";
  static constexpr size_t kInputs = 1;
  static Kernel make(const ort::KernelInfo*) { return {}; }
  static Dims result(Dims dims) {
    check(dims.size() >= 2, "TurnedKernel: the kernel has no filters and channels");
    std::swap(dims[0], dims[1]);
    return dims;
  }
  static void infer(ort::ShapeContext* context) {
    set_output(context, 0, ort::kFloat, result(planner::dims_of(input_info(context))));
  }
  static void compute(const Kernel&, ort::KernelContext* context) {
    const Value kernel = input_value(context, 0);
    void* made = output_of(context, 0, result(kernel.dims));
    turn(kernel.dims, static_cast<const float*>(kernel.data), static_cast<float*>(made),
         parallel_of(context));
  }
};

template <class Op>
ort::CustomOp* made() {
  auto op = new ort::CustomOp{};  // ONNX Runtime keeps it
  op->version = ort::kApiVersion;
  op->GetName = [](const ort::CustomOp*) { return Op::kName; };
  op->GetExecutionProviderType = [](const ort::CustomOp*) { return "CPUExecutionProvider"; };
  op->GetInputTypeCount = [](const ort::CustomOp*) -> size_t { return Op::kInputs; };
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
  using Kernel = typename Op::Kernel;
  op->CreateKernelV2 = [](const ort::CustomOp*, const ort::Api*, const ort::KernelInfo* info,
                          void** made) { return guarded([&] { *made = new Kernel(Op::make(info)); }); };
  op->KernelComputeV2 = [](void* kernel, ort::KernelContext* context) {
    return guarded([&] { Op::compute(*static_cast<Kernel*>(kernel), context); });
  };
  op->KernelDestroy = [](void* kernel) { delete static_cast<Kernel*>(kernel); };
  op->InferOutputShapeFn = [](const ort::CustomOp*, ort::ShapeContext* context) {
    return guarded([&] { Op::infer(context); });
  };
  return op;
}

}  // namespace

std::vector<ort::CustomOp*> convolution_operators() {
  return {made<Windowed<false>>(), made<Windowed<true>>(), made<TurnedKernel>()};
}

}  // namespace planner::fused

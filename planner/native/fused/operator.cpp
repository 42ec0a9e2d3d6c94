#include "fused/operator.h"

#include <cstdlib>
#include <memory>

#include "fused/convolution/operator.h"
#include "fused/cuda/run.h"
#include "fused/node.h"
#include "fused/run.h"

namespace planner::fused {
namespace {

struct Op : ort::CustomOp {
  bool cuda;
};

struct Kernel {
  Program program;
  std::unique_ptr<CudaKernels> cuda;  // null on the CPU

  Kernel(Program parsed, bool on_cuda) : program(std::move(parsed)) {
    if (on_cuda) cuda = std::make_unique<CudaKernels>(program);
    for (const Variable& variable : program.variables)
      if (!on_cuda && is_half(variable.type))
        throw std::runtime_error("planner.fused: '" + variable.name +
                                 "' is of 16 bits, of which there are programs on CUDA alone");
  }
};

struct Known {
  int onnx;
  Type type;
};
constexpr Known kKnown[] = {{ort::kFloat, Type::kFloat},
                            {ort::kDouble, Type::kDouble},
                            {ort::kInt32, Type::kInt32},
                            {ort::kInt64, Type::kInt64},
                            {ort::kBool, Type::kBool},
                            {ort::kFloat16, Type::kFloat16},
                            {ort::kBfloat16, Type::kBfloat16}};

int onnx_type(Type type) {
  for (const Known& known : kKnown)
    if (known.type == type) return known.onnx;
  return ort::kUndefined;
}

const Variable& input_of(const Program& program, size_t i) {
  return program.variables[size_t(program.inputs[i])];
}

void check_count(size_t inputs, const Program& program) {
  check(inputs == program.inputs.size(), "the node has " + std::to_string(inputs) +
                                             " inputs and its program reads " +
                                             std::to_string(program.inputs.size()));
}

void check_type(const Program& program, size_t i, int found) {
  const Variable& variable = input_of(program, i);
  check(found == onnx_type(variable.type),
        "input '" + variable.name + "' is of element type " + std::to_string(found) +
            ", and the program says " + std::to_string(onnx_type(variable.type)));
}

Program program_of(const ort::KernelInfo* info) { return parse(text_of(info, "program").c_str()); }

Program program_of(ort::ShapeContext* context) {
  return parse(text_of(context, "program").c_str());
}

std::vector<Dims> input_dims(ort::ShapeContext* context, const Program& program) {
  size_t count = 0;
  succeed(api->ShapeInferContext_GetInputCount(context, &count));
  check_count(count, program);
  std::vector<Dims> dims;
  for (size_t i = 0; i < count; i++) {
    const ort::TypeAndShape* info = input_info(context, i);
    check_type(program, i, type_of(info));
    dims.push_back(planner::dims_of(info));
  }
  return dims;
}

void infer(ort::ShapeContext* context) {
  Program program = program_of(context);
  Space space = space_of(program, input_dims(context, program));
  for (size_t i = 0; i < program.outputs.size(); i++) {
    const Variable& variable = program.variables[size_t(program.outputs[i].variable)];
    set_output(context, i, onnx_type(variable.type), dims_of(program, space, i));
  }
}

// The kernel says what is wrong: ONNX Runtime tells nobody what inference says. Without types, it
// would not come to the kernel.
void infer_or_leave(ort::ShapeContext* context) {
  try {
    return infer(context);
  } catch (const std::exception&) {
  }
  try {
    for (size_t i = 0;; i++) set_output(context, i, ort::kFloat, {1});
  } catch (const std::exception&) {  // there are no more outputs
  }
}

void compute(Kernel& kernel, ort::KernelContext* context) {
  const Program& program = kernel.program;
  size_t count = 0, made = 0;
  succeed(api->KernelContext_GetInputCount(context, &count));
  succeed(api->KernelContext_GetOutputCount(context, &made));
  check_count(count, program);
  check(made == program.outputs.size(), "the node has " + std::to_string(made) +
                                            " outputs and its program makes " +
                                            std::to_string(program.outputs.size()));
  std::vector<Dims> dims;
  std::vector<const void*> inputs;
  for (size_t i = 0; i < count; i++) {
    Value value = input_value(context, i);
    check_type(program, i, value.type);
    dims.push_back(value.dims), inputs.push_back(value.data);
  }
  Space space = space_of(program, dims);
  std::vector<void*> outputs;
  for (size_t i = 0; i < made; i++) {
    outputs.push_back(output_of(context, i, dims_of(program, space, i)));
  }
  if (kernel.cuda) {
    void* stream = nullptr;
    succeed(api->KernelContext_GetGPUComputeStream(context, &stream));
    return kernel.cuda->run(space, dims, inputs, outputs, stream);
  }
  run(program, space, dims, inputs, outputs, parallel_of(context));
}

bool on_cuda(const ort::CustomOp* op) { return static_cast<const Op*>(op)->cuda; }

// The first output may be written over the first input, where their shapes and types agree.
size_t first_in_place(int** in, int** out) {
  *in = static_cast<int*>(std::calloc(1, sizeof(int)));
  *out = static_cast<int*>(std::calloc(1, sizeof(int)));
  return *in && *out ? 1 : 0;
}

ort::CustomOp* described(bool cuda) {
  auto op = new Op{};  // ONNX Runtime keeps it
  op->cuda = cuda;
  op->version = ort::kApiVersion;
  op->GetName = [](const ort::CustomOp*) { return "Pointwise"; };
  op->GetExecutionProviderType = [](const ort::CustomOp* op) {
    return on_cuda(op) && !kTestBuild ? "CUDAExecutionProvider" : "CPUExecutionProvider";
  };
  op->GetInputTypeCount = op->GetOutputTypeCount = [](const ort::CustomOp*) -> size_t { return 1; };
  op->GetInputType =
      op->GetOutputType = [](const ort::CustomOp*, size_t) { return ort::kUndefined; };
  op->GetInputCharacteristic =
      op->GetOutputCharacteristic = [](const ort::CustomOp*, size_t) { return ort::kVariadic; };
  op->GetInputMemoryType = [](const ort::CustomOp*, size_t) { return ort::kMemoryDefault; };
  op->GetVariadicInputMinArity =
      op->GetVariadicOutputMinArity = [](const ort::CustomOp*) { return 1; };
  op->GetVariadicInputHomogeneity =
      op->GetVariadicOutputHomogeneity = [](const ort::CustomOp*) { return 0; };
  op->GetStartVersion = op->GetEndVersion = [](const ort::CustomOp*) { return 1; };
  op->CreateKernelV2 = [](const ort::CustomOp* op, const ort::Api*, const ort::KernelInfo* info,
                          void** made) {
    return guarded([&] { *made = new Kernel(program_of(info), on_cuda(op)); });
  };
  op->KernelComputeV2 = [](void* kernel, ort::KernelContext* context) {
    return guarded([&] { compute(*static_cast<Kernel*>(kernel), context); });
  };
  op->KernelDestroy = [](void* kernel) { delete static_cast<Kernel*>(kernel); };
  op->InferOutputShapeFn = [](const ort::CustomOp*, ort::ShapeContext* context) {
    return guarded([&] { infer_or_leave(context); });
  };
  op->GetMayInplace = first_in_place;
  op->ReleaseMayInplace = [](int* in, int* out) { std::free(in), std::free(out); };
  return op;
}

}  // namespace

ort::CustomOpDomain* domain() {
  static auto* made = [] {
    ort::CustomOpDomain* created = nullptr;
    succeed(api->CreateCustomOpDomain("planner.fused", &created));
    for (bool cuda : {false, true})
      if (cuda ? has_cuda_driver() : !kTestBuild)
        succeed(api->CustomOpDomain_Add(created, described(cuda)));
    for (auto* op : convolution_operators()) succeed(api->CustomOpDomain_Add(created, op));
    return created;
  }();
  return made;
}

}  // namespace planner::fused

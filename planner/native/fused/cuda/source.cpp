#include "fused/cuda/source.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <limits>
#include <set>
#include <stdexcept>

#include "fused/cuda/operations.h"

namespace planner::fused {
namespace {

constexpr unsigned kMostThreads = 256, kWarp = 32;
constexpr size_t kMostBlocks = (size_t(1) << 31) - 1;
constexpr size_t kMostTensors = 4096 / sizeof(void*);  // the bytes of a kernel's arguments

std::string name_in_cuda(Type type) {
  static const char* names[] = {"float", "double", "int", "long long", "Byte", "float", "float"};
  return names[int(type)];
}

std::string half_name(Type type) { return type == Type::kFloat16 ? "float16" : "bfloat16"; }

std::string name_in_memory(Type type) {
  return is_half(type) ? "unsigned short" : name_in_cuda(type);
}

// What rounds a value to its type, or reads or writes it: "in_", "from_" or "to_".
std::string converted(const char* how, Type type, const std::string& value) {
  return is_half(type) ? how + half_name(type) + "(" + value + ")" : value;
}

std::string in_hex(uint64_t bits) {
  char text[24];
  std::snprintf(text, sizeof text, "0x%llxull", static_cast<unsigned long long>(bits));
  return text;
}

// By its bits: infinities and NaNs have no literal.
std::string literal(Type type, const void* value) {
  if (is_half(type)) return converted("in_", type, literal(Type::kFloat, value));
  uint64_t bits = 0;
  std::memcpy(&bits, value, width_of(type));  // the first bytes are the lowest, as on every GPU
  if (type == Type::kFloat) return "__int_as_float(int(" + in_hex(bits) + "))";
  if (type == Type::kDouble) return "__longlong_as_double((long long)" + in_hex(bits) + ")";
  return "((" + name_in_cuda(type) + ")" + in_hex(bits) + ")";
}

template <class T>
std::string bound_of(Type type, bool largest) {
  using Limits = std::numeric_limits<T>;
  T value = Limits::has_infinity ? (largest ? Limits::infinity() : -Limits::infinity())
                                 : (largest ? Limits::max() : Limits::lowest());
  return literal(type, &value);
}

// What changes no result that it is combined with.
std::string neutral(const std::string& reduction, Type type) {
  if (reduction == "sum" || reduction == "mean") return "(" + name_in_cuda(type) + ")0";
  bool largest = reduction == "min";
  switch (type) {
    case Type::kFloat16:
    case Type::kBfloat16:
    case Type::kFloat:
      return bound_of<float>(Type::kFloat, largest);
    case Type::kDouble:
      return bound_of<double>(type, largest);
    case Type::kInt32:
      return bound_of<int32_t>(type, largest);
    default:
      return bound_of<int64_t>(type, largest);
  }
}

class Writer {
 public:
  Writer(const Program& program, const Space& space, const std::vector<Dims>& inputs)
      : program_(program), space_(space), levels_(program.variables.size(), 0) {
    for (size_t i = 0; i < inputs.size(); i++)
      reads_.push_back(broadcast_of(program, space, inputs[i], i));
    bool by_rows = false;
    for (const Step& step : program.steps) {
      int& level = levels_[size_t(step.result)];
      for (int operand : step.operands) level = std::max(level, levels_[size_t(operand)]);
      level += step.reduces;
      stages_ = std::max(stages_, level);
      by_rows |= step.reduces;
    }
    for (const Output& output : program.outputs) by_rows |= is_row(output.variable);
    by_rows_ = by_rows;
  }

  CudaSource written() {
    size_t tensors = program_.inputs.size() + program_.outputs.size();
    must_be(tensors <= kMostTensors, std::to_string(tensors) + " inputs and outputs");
    unsigned threads = kMostThreads;
    while (by_rows_ && threads > kWarp && threads / 2 >= space_.columns) threads /= 2;
    size_t elements = space_.rows * space_.columns;
    size_t blocks = by_rows_ ? space_.rows : (elements + threads - 1) / threads;
    must_be(blocks <= kMostBlocks, std::to_string(blocks) + " blocks of threads");
    is_wide_ = std::max(elements, space_.rows) >= size_t(1) << 31;
    text_ = "typedef unsigned " + std::string(is_wide_ ? "long long" : "int") + " Index;\n";
    text_ += "constexpr unsigned kThreads = " + std::to_string(threads) + ";\n";
    text_ += "struct Tensors { void* at[" + std::to_string(tensors) + "]; };\n";
    text_ += kOperations;
    for (const Variable& variable : program_.variables)
      if (is_half(variable.type)) {
        text_ += kHalves;
        break;
      }
    if (stages_) text_ += kReduction;
    text_ += std::string("\nextern \"C\" __global__ void __launch_bounds__(kThreads) ") +
             kCudaKernel + "(Tensors tensors) {\n";
    if (by_rows_) rows();
    else elements_alone(elements);
    text_ += "}\n";
    return {text_, blocks, threads};
  }

 private:
  void must_be(bool holds, const std::string& what) const {
    if (!holds)
      throw std::runtime_error("planner.fused: " + what +
                               " are more than a kernel of CUDA's can have; plan without --fuse");
  }

  const Variable& at(int variable) const { return program_.variables[size_t(variable)]; }
  bool is_row(int variable) const { return at(variable).kind == Kind::kRow; }
  std::string number(size_t value) const {
    return std::to_string(value) + (is_wide_ ? "ull" : "u");
  }
  void line(const std::string& text) { text_ += indent_ + text + "\n"; }

  std::string value(int variable) const {
    const Variable& found = at(variable);
    if (found.kind == Kind::kConstant) return literal(found.type, found.constant.data());
    return "v" + std::to_string(variable);
  }

  // Where an input's element lies, given the place in the space, or among its rows.
  std::string place(const Broadcast& read, const std::string& index) const {
    std::string sum;
    size_t inner = 1;
    for (size_t k = 0; k < read.sizes.size(); inner *= read.sizes[k++]) {
      if (!read.steps[k]) continue;
      std::string term = inner == 1 ? index : "(" + index + " / " + number(inner) + ")";
      if (k + 1 < read.sizes.size()) term += " % " + number(read.sizes[k]);
      if (read.steps[k] != 1) term = "(" + term + ") * " + number(read.steps[k]);
      sum += (sum.empty() ? "" : " + ") + term;
    }
    return sum.empty() ? "0" : sum;
  }

  void read(int input, const std::string& index) {
    const Variable& variable = at(input);
    std::string element = "static_cast<const " + name_in_memory(variable.type) + "*>(tensors.at[" +
                          std::to_string(variable.input) + "])[" +
                          place(reads_[size_t(variable.input)], index) + "]";
    define(input, converted("from_", variable.type, element));
  }

  void compute(const Step& step) {
    std::string type = name_in_cuda(at(step.result).type), values;
    for (int operand : step.operands) values += (values.empty() ? "" : ", ") + value(operand);
    std::string function = step.name == "cast" ? "Cast<" + type + ">::of" : "op_" + step.name;
    define(step.result, converted("in_", at(step.result).type, function + "(" + values + ")"));
  }

  void define(int variable, const std::string& as) {
    line("const " + name_in_cuda(at(variable).type) + " " + value(variable) + " = " + as + ";");
  }

  void write(const Output& output, const std::string& index) {
    const Variable& variable = at(output.variable);
    line("static_cast<" + name_in_memory(variable.type) + "*>(tensors.at[" +
         std::to_string(program_.inputs.size() + size_t(variable.output)) + "])[" + index +
         "] = " + converted("to_", variable.type, value(output.variable)) + ";");
  }

  void elements_alone(size_t elements) {
    line("const Index i = Index(blockIdx.x) * kThreads + threadIdx.x;");
    line("if (i >= " + number(elements) + ") return;");
    if (program_.axes) line("const Index row = i / " + number(space_.columns) + ";");
    for (int input : program_.inputs) read(input, is_row(input) ? "row" : "i");
    for (const Step& step : program_.steps) compute(step);
    for (const Output& output : program_.outputs) write(output, "i");
  }

  // A row is read once for each stage of its reductions, and once for what is written: what a stage
  // needs is worked out again. Nothing is written before the last one, for it may be what is read.
  void rows() {
    line("const Index row = blockIdx.x;");
    if (stages_) line("__shared__ double memory[kThreads];");
    for (int input : program_.inputs)
      if (is_row(input)) read(input, "row");
    for (int stage = 0; stage <= stages_; stage++) {
      for (const Step& step : program_.steps)
        if (is_row(step.result) && !step.reduces && levels_[size_t(step.result)] == stage)
          compute(step);
      if (stage < stages_) reduce(stage);
    }
    std::vector<int> full;
    for (const Output& output : program_.outputs)
      if (!is_row(output.variable)) full.push_back(output.variable);
    over_columns(full, [&] {
      for (const Output& output : program_.outputs)
        if (!is_row(output.variable)) write(output, "i");
    });
    if (full.size() == program_.outputs.size()) return;
    line("__syncthreads();  // a row's output may be what all threads read");
    line("if (threadIdx.x) return;");
    for (const Output& output : program_.outputs)
      if (is_row(output.variable)) write(output, "row");
  }

  void reduce(int stage) {
    std::vector<const Step*> steps;
    std::vector<int> read;
    for (const Step& step : program_.steps) {
      if (!step.reduces || levels_[size_t(step.operands[0])] != stage) continue;
      steps.push_back(&step), read.push_back(step.operands[0]);
      Type type = at(step.result).type;
      line(name_in_cuda(type) + " " + partial(step) + " = " + neutral(step.name, type) + ";");
    }
    over_columns(read, [&] {
      for (const Step* step : steps)
        line(partial(*step) + " = " + (is_sum(*step) ? "op_add" : "op_" + step->name + "imum") +
             "(" + partial(*step) + ", " + value(step->operands[0]) + ");");
    });
    for (const Step* step : steps) {
      std::string type = name_in_cuda(at(step->result).type);
      std::string all = is_sum(*step) ? "all_sum" : "all_" + step->name;
      std::string mean =
          step->name == "mean" ? " / " + type + "(" + number(space_.columns) + ")" : "";
      define(step->result, converted("in_", at(step->result).type,
                                     all + "(" + partial(*step) + ", memory)" + mean));
    }
  }

  static bool is_sum(const Step& step) { return step.name == "sum" || step.name == "mean"; }
  static std::string partial(const Step& step) { return "p" + std::to_string(step.result); }

  template <class Body>
  void over_columns(const std::vector<int>& wanted, const Body& body) {
    if (wanted.empty()) return;
    std::set<int> needed(wanted.begin(), wanted.end());
    for (size_t i = program_.steps.size(); i--;) {
      const Step& step = program_.steps[i];
      if (needed.count(step.result) && !step.reduces)
        needed.insert(step.operands.begin(), step.operands.end());
    }
    line("for (Index column = threadIdx.x; column < " + number(space_.columns) +
         "; column += kThreads) {");
    indent_ += "  ";
    line("const Index i = row * " + number(space_.columns) + " + column;");
    for (int input : program_.inputs)
      if (!is_row(input) && needed.count(input)) read(input, "i");
    for (const Step& step : program_.steps)
      if (!is_row(step.result) && needed.count(step.result)) compute(step);
    body();
    indent_.resize(indent_.size() - 2);
    line("}");
  }

  const Program& program_;
  const Space& space_;
  std::vector<Broadcast> reads_;  // by input
  std::vector<int> levels_;       // by variable: how many reductions come before it
  int stages_ = 0;
  bool by_rows_ = false, is_wide_ = false;
  std::string text_, indent_ = "  ";
};

}  // namespace

CudaSource cuda_source(const Program& program, const Space& space,
                       const std::vector<Dims>& inputs) {
  return Writer(program, space, inputs).written();
}

void check_cuda_memory(const Program& program, const Space& space, const std::vector<Dims>& dims,
                       const std::vector<const void*>& inputs, const std::vector<void*>& outputs) {
  for (size_t i = 0; i < inputs.size(); i++) {
    const Variable& read = program.variables[size_t(program.inputs[i])];
    const Broadcast shape = broadcast_of(program, space, dims[i], i);
    bool is_row = read.kind == Kind::kRow;
    size_t all = is_row ? space.rows : space.rows * space.columns;
    for (size_t k = 0; all && k < outputs.size(); k++) {
      const Variable& made = program.variables[size_t(program.outputs[k].variable)];
      bool is_alike = made.kind == read.kind && width_of(made.type) == width_of(read.type) &&
                      shape.elements == all;
      if (inputs[i] == outputs[k] && !is_alike)
        throw std::runtime_error("planner.fused: output '" + made.name +
                                 "' is the memory of input '" + read.name +
                                 "', which is broadcast: on CUDA another output must be the first");
    }
  }
}

}  // namespace planner::fused

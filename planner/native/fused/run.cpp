#include "fused/run.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>

namespace planner::fused {
namespace {

constexpr size_t kBlock = 1024;        // elements: a dozen values of them stay in the L1 cache
constexpr size_t kTask = 16 * kBlock;  // elements that are worth a thread's waking

std::string text_of(const Dims& dims) {
  std::string text;
  for (int64_t dim : dims) text += (text.empty() ? "" : ",") + std::to_string(dim);
  return "(" + text + ")";
}

// Gathers elements of a tensor that is broadcast to the space, or to its rows.
class Reader {
 public:
  Reader(const Broadcast& shape, size_t width, const void* data)
      : shape_(shape), width_(width), data_(static_cast<const char*>(data)) {}

  // For memory that an output is written over: what is broadcast is read again, later.
  void keep() {
    if (shape_.is_whole()) return;
    kept_.assign(data_, data_ + shape_.elements * width_);
    data_ = kept_.data();
  }

  bool is_single() const { return shape_.is_single(); }

  // Elements [first, first + count) of the space: where they are, or gathered.
  const void* read(size_t first, size_t count, char* scratch) const {
    if (shape_.is_whole()) return data_ + first * width_;
    switch (width_) {
      case 1: gather<uint8_t>(first, count, scratch); break;
      case 4: gather<uint32_t>(first, count, scratch); break;
      default: gather<uint64_t>(first, count, scratch);
    }
    return scratch;
  }
  const void* data() const { return data_; }

 private:
  template <class T>
  void gather(size_t first, size_t count, char* scratch) const {
    auto from = reinterpret_cast<const T*>(data_);
    auto to = reinterpret_cast<T*>(scratch);
    const auto &sizes = shape_.sizes, &steps = shape_.steps;
    size_t inner = sizes[0];
    while (count) {
      size_t place = first / inner, within = first % inner, at = within * steps[0];
      for (size_t i = 1; i < sizes.size(); i++) {
        at += place % sizes[i] * steps[i];
        place /= sizes[i];
      }
      size_t run = std::min(count, inner - within);
      if (steps[0]) std::memcpy(to, from + at, run * sizeof(T));
      else std::fill(to, to + run, from[at]);
      to += run, first += run, count -= run;
    }
  }

  Broadcast shape_;
  size_t width_;
  const char* data_;
  std::vector<char> kept_;
};

// One call of a program.
class Job {
 public:
  Job(const Program& program, const Space& space, const std::vector<Dims>& dims,
      const std::vector<const void*>& inputs, const std::vector<void*>& outputs)
      : program_(program), space_(space), outputs_(outputs) {
    for (size_t i = 0; i < inputs.size(); i++) {
      const Variable& variable = program.variables[size_t(program.inputs[i])];
      readers_.emplace_back(broadcast_of(program, space, dims[i], i), width_of(variable.type),
                            inputs[i]);
      if (std::count(outputs.begin(), outputs.end(), inputs[i])) readers_.back().keep();
    }
    for (const Variable& variable : program.variables)
      width_ = std::max(width_, width_of(variable.type));
    block_rows_ = std::max<size_t>(1, kBlock / std::max<size_t>(1, space.columns));
    slot_bytes_ = (block_rows_ * std::max<size_t>(1, space.columns) * width_ + 63) / 64 * 64;
    for (void* output : outputs)
      copied_.push_back(std::count(inputs.begin(), inputs.end(), output) > 0);
  }

  size_t tasks() const {
    size_t blocks = (space_.rows + block_rows_ - 1) / block_rows_;
    return (blocks + task_blocks() - 1) / task_blocks();
  }

  void run_task(size_t task) const {
    static thread_local std::vector<char> scratch;
    static thread_local std::vector<Operand> places;
    scratch.resize(std::max(scratch.size(), size_t(program_.slots) * slot_bytes_ + 64));
    places.resize(program_.variables.size());
    auto begins = reinterpret_cast<uintptr_t>(scratch.data());
    auto aligned = reinterpret_cast<char*>((begins + 63) / 64 * 64);
    size_t first = task * task_blocks() * block_rows_;
    size_t end = std::min(space_.rows, first + task_blocks() * block_rows_);
    for (; first < end; first += block_rows_)
      run_block(first, std::min(block_rows_, end - first), aligned, places);
  }

 private:
  size_t task_blocks() const {
    size_t elements = block_rows_ * std::max<size_t>(1, space_.columns);
    return std::max<size_t>(1, kTask / elements);
  }
  size_t of(const Variable& variable, size_t rows) const {  // elements in so many rows
    return variable.kind == Kind::kFull ? rows * space_.columns : rows;
  }

  void run_block(size_t first, size_t rows, char* scratch, std::vector<Operand>& places) const {
    read(first, rows, scratch, places);
    for (const Step& step : program_.steps) {
      const Variable& result = program_.variables[size_t(step.result)];
      char* to = scratch + size_t(result.slot) * slot_bytes_;
      size_t output = size_t(result.output);
      if (result.output >= 0 && !copied_[output]) to = output_at(result, first);
      places[size_t(step.result)] = placed(result, to);
      compute(step, result, rows, to, places);
    }
    for (size_t i = 0; i < program_.outputs.size(); i++) {
      if (!copied_[i]) continue;
      const Variable& variable = program_.variables[size_t(program_.outputs[i].variable)];
      std::memcpy(output_at(variable, first), scratch + size_t(variable.slot) * slot_bytes_,
                  of(variable, rows) * width_of(variable.type));
    }
  }

  char* output_at(const Variable& variable, size_t first) const {
    return static_cast<char*>(outputs_[size_t(variable.output)]) +
           of(variable, first) * width_of(variable.type);
  }

  Operand placed(const Variable& variable, const void* at) const {
    size_t width = variable.kind == Kind::kFull;
    return {at, width ? space_.columns : 1, width};
  }

  void read(size_t first, size_t rows, char* scratch, std::vector<Operand>& places) const {
    for (size_t i = 0; i < program_.variables.size(); i++) {
      const Variable& variable = program_.variables[i];
      if (variable.kind == Kind::kConstant) places[i] = {variable.constant.data(), 0, 0};
      if (variable.input < 0) continue;
      const Reader& reader = readers_[size_t(variable.input)];
      if (reader.is_single() && !variable.is_reduced) {
        places[i] = {reader.data(), 0, 0};
        continue;
      }
      char* slot = scratch + size_t(variable.slot) * slot_bytes_;
      places[i] = placed(variable, reader.read(of(variable, first), of(variable, rows), slot));
    }
  }

  // Where every operand is full or single, or a row's own, the block is one long row.
  void compute(const Step& step, const Variable& result, size_t rows, void* to,
               const std::vector<Operand>& places) const {
    if (!step.reduces && !of(result, rows)) return;  // a loop would read an empty tensor's first
    Span span;
    span.to = to, span.rows = rows, span.columns = space_.columns;
    bool has_rows = false;
    for (size_t i = 0; i < step.operands.size(); i++) {
      span.from[i] = places[size_t(step.operands[i])];
      bool is_row = program_.variables[size_t(step.operands[i])].kind == Kind::kRow;
      has_rows |= is_row && span.from[i].row_step;
    }
    if (!step.reduces && (!has_rows || result.kind == Kind::kRow)) {
      span.columns = of(result, rows), span.rows = 1;
      for (Operand& from : span.from) from.step = from.row_step ? 1 : 0;
    }
    step.loop(span);
  }

  const Program& program_;
  const Space& space_;
  const std::vector<void*>& outputs_;
  std::vector<Reader> readers_;
  std::vector<bool> copied_;  // by output: it is some input's memory
  size_t width_ = 1, block_rows_ = 1, slot_bytes_ = 0;
};

}  // namespace

Space space_of(const Program& program, const std::vector<Dims>& inputs) {
  Space space;
  size_t rank = program.axes;
  for (const Dims& dims : inputs) rank = std::max(rank, dims.size());
  space.dims.assign(rank, 1);
  for (size_t i = 0; i < inputs.size(); i++) {
    const Dims& dims = inputs[i];
    const Variable& variable = program.variables[size_t(program.inputs[i])];
    auto fits = [&](bool holds) {
      if (holds) return;
      throw std::runtime_error("planner.fused: input '" + variable.name + "' has the shape " +
                               text_of(dims) + ", which does not go with " + text_of(space.dims) +
                               (variable.kind == Kind::kRow ? ", or is no row's" : ""));
    };
    for (size_t j = 0; j < dims.size(); j++) {  // the last axis first
      int64_t mine = dims[dims.size() - 1 - j];
      int64_t& whole = space.dims[rank - 1 - j];
      fits(variable.kind != Kind::kRow || j >= program.axes || mine == 1 || mine < 0);
      if (mine == whole || mine == 1) continue;
      fits(whole == 1 || whole < 0 || mine < 0);
      if (whole == 1 || mine >= 0) whole = mine;
    }
  }
  for (size_t i = 0; i < rank; i++) {
    size_t& count = i + program.axes < rank ? space.rows : space.columns;
    count *= size_t(std::max<int64_t>(0, space.dims[i]));
  }
  return space;
}

Dims dims_of(const Program& program, const Space& space, size_t output) {
  const Output& made = program.outputs[output];
  Dims dims = space.dims;
  if (program.variables[size_t(made.variable)].kind != Kind::kRow) return dims;
  dims.resize(dims.size() - program.axes);
  if (made.keeps_axes) dims.resize(dims.size() + program.axes, 1);
  return dims;
}

Broadcast broadcast_of(const Program& program, const Space& space, Dims dims, size_t input) {
  if (program.variables[size_t(program.inputs[input])].kind != Kind::kRow)
    return Broadcast(dims, space.dims);
  dims.resize(dims.size() - std::min(dims.size(), program.axes));
  return Broadcast(dims, Dims(space.dims.begin(), space.dims.end() - long(program.axes)));
}

bool has_work(const Program& program, const Space& space) {
  for (const Step& step : program.steps)
    if (space.rows && !space.columns && (step.name == "max" || step.name == "min"))
      throw std::runtime_error("planner.fused: '" + step.name + "' of rows without elements");
  return space.rows;
}

void run(const Program& program, const Space& space, const std::vector<Dims>& dims,
         const std::vector<const void*>& inputs, const std::vector<void*>& outputs,
         const Parallel& parallel) {
  if (!has_work(program, space)) return;
  Job job(program, space, dims, inputs, outputs);
  parallel(job.tasks(), [&](size_t task) { job.run_task(task); });
}

}  // namespace planner::fused

// What Python hands over: numpy's arrays, as planner/search/fast/arrays.py names them. A test
// compares the fields, their types and their order.
#pragma once

#include <cstdint>
#include <limits>

namespace planner::search {

// An array of numpy's: its memory stays Python's.
template <class T>
struct Array {
  T* data;
  int64_t size;
  T& operator[](int64_t i) const { return data[i]; }
  T* begin() const { return data; }
  T* end() const { return data + size; }
};
// Row `i` of a ragged list: see Problem.
inline Array<const int32_t> within(Array<const int32_t> flat, Array<const int32_t> at, int64_t i) {
  return {flat.data + at[i], at[i + 1] - at[i]};
}

static_assert(sizeof(Array<int>) == 16, "Python writes a pointer and a count, 8 bytes each");

enum Choice : uint8_t { kKeep, kDrop, kSwap };
enum Kind : uint8_t { kRun, kOut, kIn };

// A problem. Ragged lists are flat with offsets: the inputs of operation i are
// ins[ins_at[i]] .. ins[ins_at[i + 1] - 1]. Sizes in bytes, times in microseconds.
struct Problem {
  Array<const int32_t> ins_at, ins, outs_at, outs;
  Array<const int32_t> pair_at, pair_source, pair_target;  // what may be written in place
  Array<const uint8_t> recomputable;                       // by operation
  Array<const double> duration;
  Array<const int64_t> workspace;
  Array<const int32_t> use_at, uses;  // by tensor
  Array<const int32_t> gap_at, gap_tensor;
  Array<const int32_t> producer;
  Array<const int64_t> size;
  Array<const uint8_t> to_end, swappable;
  Array<const double> out_us, in_us;
  int64_t fixed, capacity;
  int64_t overlap;  // copies run beside the operations

  int64_t ops() const { return duration.size; }
  int64_t tensors() const { return size.size; }
  Array<const int32_t> inputs(int64_t op) const { return within(ins, ins_at, op); }
  Array<const int32_t> outputs(int64_t op) const { return within(outs, outs_at, op); }
  // The base operations that read a tensor, in turn.
  Array<const int32_t> readers(int64_t t) const { return within(uses, use_at, t); }
  // The gap behind a tensor's last use.
  int64_t last_gap(int64_t t) const { return gap_at[t + 1] - 1; }
};

// Decisions, per gap.
struct Plan {
  Array<uint8_t> choice, released;
  Array<int32_t> early;
};

// A schedule and its replay, per action; `live` has one more.
struct Steps {
  Array<uint8_t> kind;
  Array<int32_t> target;
  Array<int64_t> live;
  Array<double> start, finish;
};

constexpr double kNever = std::numeric_limits<double>::infinity();
constexpr int64_t kBroken = std::numeric_limits<int64_t>::max();  // the peak of what is no schedule

// numpy's random numbers: the bit generator of a numpy.random.Generator.
struct Random {
  void* state;
  double (*next)(void*);

  double uniform() const { return next(state); }  // from 0, less than 1
  int64_t below(int64_t limit) const { return int64_t(uniform() * double(limit)); }
};

}  // namespace planner::search

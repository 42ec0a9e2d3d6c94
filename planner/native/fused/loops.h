// The loops that a program's steps run: one for each operation and type.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace planner::fused {

// The halves have no loops: programs with them run on CUDA alone.
enum class Type { kFloat, kDouble, kInt32, kInt64, kBool, kFloat16, kBfloat16 };

constexpr size_t kWidths[] = {4, 8, 4, 8, 1, 2, 2};
inline size_t width_of(Type type) { return kWidths[int(type)]; }
inline bool is_half(Type type) { return type == Type::kFloat16 || type == Type::kBfloat16; }

// Element c of row r is at data[r * row_step + c * step]; `step` is 0 or 1.
struct Operand {
  const void* data = nullptr;
  size_t row_step = 0, step = 0;
};

// Rows by columns that one loop computes; a reduction writes one element a row.
struct Span {
  void* to = nullptr;
  Operand from[3];
  size_t rows = 0, columns = 0;
};

using Loop = void (*)(const Span&);

struct Choice {
  bool exists = false;  // there is such an operation on such types
  Loop loop = nullptr;  // null for halves
  Type result = Type::kFloat;
  bool reduces = false;
};

// How many values an operation takes; 0 where there is none of that name.
size_t arity_of(const std::string& name);

// The loop of an operation on operands of these types, for this processor.
Choice choose(const std::string& name, const std::vector<Type>& types);

// The loop that casts; null where one of both is a half.
Loop cast_loop(Type from, Type to);

}  // namespace planner::fused

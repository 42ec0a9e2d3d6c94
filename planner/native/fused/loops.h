// The loops that a program's steps run: one for each operation and type.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace planner::fused {

enum class Type { kFloat, kDouble, kInt32, kInt64, kBool };

constexpr size_t kWidths[] = {4, 8, 4, 8, 1};
inline size_t width_of(Type type) { return kWidths[int(type)]; }

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
  Loop loop = nullptr;  // nullptr: there is no such operation on such types
  Type result = Type::kFloat;
  bool reduces = false;
};

// How many values an operation takes; 0 where there is none of that name.
size_t arity_of(const std::string& name);

// The loop of an operation on operands of these types, for this processor.
Choice choose(const std::string& name, const std::vector<Type>& types);

// The loop that casts.
Loop cast_loop(Type from, Type to);

}  // namespace planner::fused

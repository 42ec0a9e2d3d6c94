// The loops, compiled twice on x86: for every processor, and for those with AVX2.
#include "fused/loops.h"

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <map>
#include <type_traits>

namespace planner::fused {
namespace {

struct Row {
  size_t arity;
  Loop loops[5];  // by Type, of the last operand
  bool compares, reduces;
};
using Rows = std::map<std::string, Row>;
using Casts = Loop[5][5];

}  // namespace

#define PLANNER_FMA(a, b, c) ((a) * (b) + (c))
namespace plain {
#include "fused/loops.inc"
}  // namespace plain

#if defined(__x86_64__)
#undef PLANNER_FMA
#define PLANNER_FMA(a, b, c) __builtin_fmaf(a, b, c)
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma")
#endif
namespace wide {
#include "fused/loops.inc"
}  // namespace wide
#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

namespace {
bool is_wide() {
  static const bool found = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  return found;
}
}  // namespace
#define PLANNER_CHOOSE(what) (is_wide() ? wide::what : plain::what)
#else
#define PLANNER_CHOOSE(what) plain::what
#endif

size_t arity_of(const std::string& name) {
  if (name == "cast") return 1;
  auto& all = plain::rows();
  auto found = all.find(name);
  return found == all.end() ? 0 : found->second.arity;
}

Choice choose(const std::string& name, const std::vector<Type>& types) {
  auto& all = PLANNER_CHOOSE(rows());
  auto found = all.find(name);
  if (found == all.end()) return {};
  const auto& row = found->second;
  bool selects = name == "where";
  for (size_t i = 1; i < types.size(); i++)  // all of one type, a condition aside
    if (types[i] != types[selects ? 1 : 0]) return {};
  if (selects && types[0] != Type::kBool) return {};
  Type type = types.back();
  return {row.loops[int(type)], row.compares ? Type::kBool : type, row.reduces};
}

Loop cast_loop(Type from, Type to) { return PLANNER_CHOOSE(casts())[int(from)][int(to)]; }

}  // namespace planner::fused

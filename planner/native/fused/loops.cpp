// The loops, compiled three times on x86: for every processor, for AVX2 with FMA, and for AVX-512.
// The two with FMA give the same bits. PLANNER_PLAIN_LOOPS, for tests, leaves the first alone.
#include "fused/loops.h"

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <map>
#include <type_traits>

#include "fused/processor.h"

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

#ifdef PLANNER_HAS_KINDS
#undef PLANNER_FMA
#define PLANNER_FMA(a, b, c) __builtin_fmaf(a, b, c)

PLANNER_FOR_AVX2
namespace avx2 {
#include "fused/loops.inc"
}  // namespace avx2
PLANNER_FOR_ANY
PLANNER_FOR_AVX512
namespace avx512 {
#include "fused/loops.inc"
}  // namespace avx512
PLANNER_FOR_ANY

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
  Loop loop = is_half(type) ? nullptr : row.loops[int(type)];
  bool exists = loop || (is_half(type) && row.loops[int(Type::kFloat)]);
  return {exists, loop, row.compares ? Type::kBool : type, row.reduces};
}

Loop cast_loop(Type from, Type to) {
  if (is_half(from) || is_half(to)) return nullptr;
  return PLANNER_CHOOSE(casts())[int(from)][int(to)];
}

}  // namespace planner::fused

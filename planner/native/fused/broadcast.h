// How a tensor is broadcast to a space.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace planner::fused {

using Dims = std::vector<int64_t>;

// The axes of the space, the last one first; neighbours along which the tensor moves alike are one.
struct Broadcast {
  std::vector<size_t> sizes, steps;  // the last axis's step is 0 or 1
  size_t elements = 1;               // of the tensor

  Broadcast(const Dims& dims, const Dims& space) {
    for (size_t i = 0; i < space.size(); i++) {  // the last axis first
      size_t whole = size_t(space[space.size() - 1 - i]);
      size_t mine = i < dims.size() ? size_t(dims[dims.size() - 1 - i]) : 1;
      size_t moves = mine == 1 ? 0 : elements;
      elements *= mine;
      if (whole == 1) continue;
      if (!sizes.empty() && moves == steps.back() * sizes.back()) {
        sizes.back() *= whole;
      } else {
        sizes.push_back(whole), steps.push_back(moves);
      }
    }
    if (sizes.empty()) sizes.push_back(1), steps.push_back(0);
  }
  bool is_single() const { return sizes.size() == 1 && !steps[0]; }
  bool is_whole() const { return sizes.size() == 1 && steps[0] == 1; }
};

}  // namespace planner::fused

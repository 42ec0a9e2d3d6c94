// Runs a program over tensors, block by block.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "fused/broadcast.h"
#include "fused/program.h"

namespace planner::fused {

// The space that a program runs over: its inputs' dims, broadcast as NumPy does; rows by columns.
struct Space {
  Dims dims;
  size_t rows = 1, columns = 1;
};

// Throws std::runtime_error where the inputs' dims do not go together. A dim below 0 is not known.
Space space_of(const Program& program, const std::vector<Dims>& inputs);

// The dims of an output.
Dims dims_of(const Program& program, const Space& space, size_t output);

// How an input is broadcast to the space, or to its rows.
Broadcast broadcast_of(const Program& program, const Space& space, Dims dims, size_t input);

// Whether there is a row to compute. Throws std::runtime_error where rows have no elements, and
// their largest or least is asked for.
bool has_work(const Program& program, const Space& space);

// Calls its argument with each number below a count, in any order, on any threads.
using Parallel = std::function<void(size_t, const std::function<void(size_t)>&)>;

// An output may be an input's memory, where both are full and of one width.
void run(const Program& program, const Space& space, const std::vector<Dims>& dims,
         const std::vector<const void*>& inputs, const std::vector<void*>& outputs,
         const Parallel& parallel);

}  // namespace planner::fused

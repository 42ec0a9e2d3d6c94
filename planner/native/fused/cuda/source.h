// A program as CUDA C++, for inputs of given dims.
#pragma once

#include <string>
#include <vector>

#include "fused/run.h"

namespace planner::fused {

constexpr const char* kCudaKernel = "planner_fused";

// A kernel takes one argument, an array of addresses: the inputs, then the outputs.
struct CudaSource {
  std::string text;
  size_t blocks;
  unsigned threads;  // of a block
};

// One thread computes an element, or one block a row, where there are reductions. What is added up
// is added in an order that depends on the row's length alone. Throws std::runtime_error where CUDA
// has no grid of that size.
CudaSource cuda_source(const Program& program, const Space& space, const std::vector<Dims>& inputs);

// Throws std::runtime_error where an output is the memory of an input and the kernel, whose threads
// run in any order, would read what it has written. An output may be an input that has its very
// elements.
void check_cuda_memory(const Program& program, const Space& space, const std::vector<Dims>& dims,
                       const std::vector<const void*>& inputs, const std::vector<void*>& outputs);

}  // namespace planner::fused

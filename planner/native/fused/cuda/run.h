// Runs a program on CUDA.
#pragma once

#include <map>
#include <mutex>
#include <vector>

#include "fused/run.h"

namespace planner::fused {

// A program's kernels, one for each set of dims of its inputs. What two nodes have alike is
// compiled once in a process.
class CudaKernels {
 public:
  explicit CudaKernels(const Program& program);  // throws where there is no compiler

  // Issues the program on a stream of the current context. Throws std::runtime_error.
  void run(const Space& space, const std::vector<Dims>& dims,
           const std::vector<const void*>& inputs, const std::vector<void*>& outputs, void* stream);

 private:
  struct Launch {
    void* function = nullptr;
    unsigned blocks = 0, threads = 0;
  };
  Launch launch_for(const Space& space, const std::vector<Dims>& dims, void* context);

  const Program& program_;
  std::mutex mutex_;
  std::map<std::pair<void*, std::vector<Dims>>, Launch> launches_;  // by context and dims
};

}  // namespace planner::fused

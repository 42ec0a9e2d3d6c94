// How a function of the library is made visible, and how it fails.
#pragma once

#include <cstdint>
#include <limits>
#include <new>

#define PLANNER_EXPORT extern "C" __attribute__((visibility("default")))

namespace planner {

constexpr int64_t kNoMemory = std::numeric_limits<int64_t>::min();

// What a function returns, or kNoMemory: no exception may leave the library.
template <class Function>
int64_t unless_out_of_memory(Function function) {
  try {
    return function();
  } catch (const std::bad_alloc&) {
    return kNoMemory;
  }
}

}  // namespace planner

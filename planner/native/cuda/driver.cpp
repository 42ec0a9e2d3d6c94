#include "cuda/driver.h"

#include <cstdlib>

#include "loaded.h"
#include "swap/slots.h"

namespace planner {
namespace cuda {

Driver::Driver() {
  const char* name = kTestBuild ? std::getenv("PLANNER_TEST_DRIVER") : "libcuda.so.1";
  void* library = opened(name);
  if (!library) {
    missing = "libcuda.so.1 cannot be loaded";
    return;
  }
  Loaded driver(library, missing, "libcuda.so.1");
#define PLANNER_CUDA_FIND(symbol, member, arguments) driver.find(#symbol, member);
  PLANNER_CUDA_FUNCTIONS(PLANNER_CUDA_FIND)
#undef PLANNER_CUDA_FIND
}

void Driver::check(Result result, const char* symbol) const {
  if (!result) return;
  const char* text = nullptr;
  if (error_string(result, &text) || !text) text = "an error that the driver has no text for";
  throw std::runtime_error(std::string("planner.native: ") + symbol + " failed: " + text + " (" +
                           std::to_string(result) + ")");
}

const Driver& driver() {
  static const auto* there = new Driver;
  return *there;
}

}  // namespace cuda

bool has_cuda_driver() { return cuda::driver().missing.empty(); }

}  // namespace planner

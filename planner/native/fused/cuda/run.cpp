#include "fused/cuda/run.h"

#include <stdexcept>
#include <string>

#include "cuda/driver.h"
#include "cuda/nvrtc.h"
#include "fused/cuda/source.h"

namespace planner::fused {
namespace {

int capability_here() {
  const cuda::Driver& driver = cuda::driver();
  int device = 0, major = 0, minor = 0;
  driver.check(driver.context_device(&device), "cuCtxGetDevice");
  driver.check(driver.device_attribute(&major, cuda::kCapabilityMajor, device),
               "cuDeviceGetAttribute");
  driver.check(driver.device_attribute(&minor, cuda::kCapabilityMinor, device),
               "cuDeviceGetAttribute");
  return 10 * major + minor;
}

// The function of a source in the current context; modules stay loaded, for sessions that come
// later.
void* function_of(const std::string& source, void* context) {
  static std::mutex mutex;
  static auto* known = new std::map<std::pair<void*, std::string>, void*>;
  std::lock_guard<std::mutex> lock(mutex);
  void*& function = (*known)[{context, source}];
  if (function) return function;
  const cuda::Driver& driver = cuda::driver();
  std::string image = cuda::compiled(source, capability_here());
  void* module = nullptr;
  driver.check(driver.module_load(&module, image.c_str(), 0, nullptr, nullptr),
               "cuModuleLoadDataEx");
  driver.check(driver.module_function(&function, module, kCudaKernel), "cuModuleGetFunction");
  return function;
}

}  // namespace

CudaKernels::CudaKernels(const Program& program) : program_(program) {
  if (!cuda::why_no_compiler().empty())
    throw std::runtime_error("planner.fused: " + cuda::why_no_compiler());
}

CudaKernels::Launch CudaKernels::launch_for(const Space& space, const std::vector<Dims>& dims,
                                            void* context) {
  std::lock_guard<std::mutex> lock(mutex_);
  auto found = launches_.find({context, dims});
  if (found != launches_.end()) return found->second;
  CudaSource source = cuda_source(program_, space, dims);
  Launch made{nullptr, unsigned(source.blocks), source.threads};
  if (made.blocks) made.function = function_of(source.text, context);
  return launches_[{context, dims}] = made;
}

void CudaKernels::run(const Space& space, const std::vector<Dims>& dims,
                      const std::vector<const void*>& inputs, const std::vector<void*>& outputs,
                      void* stream) {
  if (!has_work(program_, space)) return;
  check_cuda_memory(program_, space, dims, inputs, outputs);
  const cuda::Driver& driver = cuda::driver();
  void* context = nullptr;
  driver.check(driver.context_get(&context), "cuCtxGetCurrent");
  try {
    Launch launch = launch_for(space, dims, context);
    if (!launch.blocks) return;
    std::vector<const void*> tensors(inputs);
    tensors.insert(tensors.end(), outputs.begin(), outputs.end());
    void* arguments[] = {tensors.data()};
    driver.check(driver.launch(launch.function, launch.blocks, 1, 1, launch.threads, 1, 1, 0,
                               stream, arguments, nullptr),
                 "cuLaunchKernel");
  } catch (const std::exception& error) {
    throw std::runtime_error(std::string(error.what()) + "\nplan without --fuse; the program:\n" +
                             program_.text);
  }
}

}  // namespace planner::fused

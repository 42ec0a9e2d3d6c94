#include "cuda/nvrtc.h"

#include <glob.h>
#include <link.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <vector>

#include "common.h"
#include "cuda/driver.h"
#include "loaded.h"

namespace planner::cuda {
namespace {

// X(symbol, member, result, arguments)
#define PLANNER_NVRTC_FUNCTIONS(X)                                                   \
  X(nvrtcGetErrorString, error_string, const char*, (int))                           \
  X(nvrtcGetNumSupportedArchs, arch_count, int, (int*))                              \
  X(nvrtcGetSupportedArchs, archs, int, (int*))                                      \
  X(nvrtcCreateProgram, create, int,                                                 \
    (void**, const char*, const char*, int, const char* const*, const char* const*)) \
  X(nvrtcCompileProgram, compile, int, (void*, int, const char* const*))             \
  X(nvrtcGetProgramLogSize, log_size, int, (void*, size_t*))                         \
  X(nvrtcGetProgramLog, log, int, (void*, char*))                                    \
  X(nvrtcGetCUBINSize, cubin_size, int, (void*, size_t*))                            \
  X(nvrtcGetCUBIN, cubin, int, (void*, char*))                                       \
  X(nvrtcGetPTXSize, ptx_size, int, (void*, size_t*))                                \
  X(nvrtcGetPTX, ptx, int, (void*, char*))                                           \
  X(nvrtcDestroyProgram, destroy, int, (void**))

constexpr int kMajors[] = {13, 12};  // of CUDA, the newest first

// In the packages nvidia-cuda-nvrtc and nvidia-cuda-nvrtc-cu12, which lie beside onnxruntime's.
std::vector<std::string> beside_onnxruntime(const std::string& name) {
  std::string packages;
  auto find = [](dl_phdr_info* loaded, size_t, void* packages) {
    const char* end = std::strstr(loaded->dlpi_name, "/onnxruntime/capi/");
    if (end) static_cast<std::string*>(packages)->assign(loaded->dlpi_name, end);
    return end ? 1 : 0;
  };
  if (!dl_iterate_phdr(find, &packages)) return {};
  glob_t found{};
  glob((packages + "/nvidia/*/lib/" + name).c_str(), 0, nullptr, &found);
  std::vector<std::string> paths(found.gl_pathv, found.gl_pathv + found.gl_pathc);
  globfree(&found);
  return paths;
}

void* load() {
  if (kTestBuild) {
    return opened(std::getenv("PLANNER_TEST_NVRTC"));
  }
  // 13020 of 13.2; what is newer than the driver makes images that it does not load
  int version = 0;
  if (driver().driver_version(&version)) return nullptr;
  for (int major : kMajors) {
    if (major * 1000 > version) continue;
    std::string name = "libnvrtc.so." + std::to_string(major);
    if (void* there = opened(name.c_str())) return there;
    for (const std::string& path : beside_onnxruntime(name))
      if (void* there = opened(path.c_str())) return there;
  }
  return nullptr;
}

struct Nvrtc {
#define PLANNER_NVRTC_MEMBER(symbol, member, result, arguments) result(*member) arguments = nullptr;
  PLANNER_NVRTC_FUNCTIONS(PLANNER_NVRTC_MEMBER)
#undef PLANNER_NVRTC_MEMBER
  std::string missing;

  Nvrtc() {
    missing = driver().missing;
    void* library = missing.empty() ? load() : nullptr;
    if (!library && missing.empty())
      missing =
          "CUDA's compiler libnvrtc.so.13 or .12 was not found, or is newer than the driver: "
          "install the package nvidia-cuda-nvrtc (nvidia-cuda-nvrtc-cu12 for CUDA 12) beside "
          "onnxruntime-gpu, or plan without --fuse";
    if (!library) return;
    Loaded compiler(library, missing, "CUDA's compiler");
#define PLANNER_NVRTC_FIND(symbol, member, result, arguments) compiler.find(#symbol, member);
    PLANNER_NVRTC_FUNCTIONS(PLANNER_NVRTC_FIND)
#undef PLANNER_NVRTC_FIND
  }

  void check(int result, const std::string& what) const {
    if (result) throw std::runtime_error("planner.fused: " + what + ": " + error_string(result));
  }
};

const Nvrtc& nvrtc() {
  static const auto* there = new Nvrtc;
  return *there;
}

// The newest architecture that the compiler knows and the device runs.
int arch_for(int capability) {
  const Nvrtc& it = nvrtc();
  int count = 0;
  it.check(it.arch_count(&count), "nvrtcGetNumSupportedArchs");
  std::vector<int> known(size_t(count), 0);
  it.check(it.archs(known.data()), "nvrtcGetSupportedArchs");
  int best = 0;
  for (int arch : known)
    if (arch <= capability) best = std::max(best, arch);
  if (!best)
    throw std::runtime_error(
        "planner.fused: CUDA's compiler makes no code for compute capability " +
        std::to_string(capability / 10) + "." + std::to_string(capability % 10) +
        ": install nvidia-cuda-nvrtc-cu12, or plan without --fuse");
  return best;
}

class Compilation {
 public:
  explicit Compilation(const std::string& source) {
    const char* name = "planner_fused.cu";
    it_.check(it_.create(&program_, source.c_str(), name, 0, nullptr, nullptr),
              "nvrtcCreateProgram");
  }
  ~Compilation() { it_.destroy(&program_); }

  void run(const std::string& arch) {
    std::string target = "--gpu-architecture=" + arch;
    const char* options[] = {target.c_str(), "--std=c++17",     "--fmad=false",
                             "--ftz=false",  "--prec-div=true", "--prec-sqrt=true"};
    int result = it_.compile(program_, int(sizeof options / sizeof *options), options);
    if (result)
      throw std::runtime_error(std::string("planner.fused: CUDA's compiler refuses a kernel: ") +
                               it_.error_string(result) + "\n" +
                               text(it_.log_size, it_.log).c_str());
  }
  std::string image(bool for_device) {  // the device's own code, or what the driver compiles
    return for_device ? text(it_.cubin_size, it_.cubin) : text(it_.ptx_size, it_.ptx);
  }

 private:
  std::string text(int (*size_of)(void*, size_t*), int (*get)(void*, char*)) {
    size_t size = 0;
    it_.check(size_of(program_, &size), "the size of what CUDA's compiler made");
    std::string made(size, '\0');
    it_.check(get(program_, made.data()), "what CUDA's compiler made");
    return made;
  }

  const Nvrtc& it_ = nvrtc();
  void* program_ = nullptr;
};

}  // namespace

const std::string& why_no_compiler() { return nvrtc().missing; }

std::string compiled(const std::string& source, int capability) {
  int arch = arch_for(capability);
  bool is_own = arch == capability;
  Compilation compilation(source);
  compilation.run((is_own ? "sm_" : "compute_") + std::to_string(arch));
  return compilation.image(is_own);
}

}  // namespace planner::cuda

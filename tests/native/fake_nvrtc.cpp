// A stand-in for libnvrtc: FAKE_NVRTC_COMPILER, a C++ compiler with its flags, makes a library for the
// CPU of a kernel's source, and the image is its path in the folder FAKE_NVRTC_FOLDER, where the
// source stays. FAKE_NVRTC_MUTANT leaves out the barrier of that number.
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string>

namespace {

constexpr int kGood = 0, kInvalid = 3, kRefused = 6;
constexpr const char* kBarrier = "__syncthreads();";
constexpr int kArchs[] = {75, 80, 90};

struct Program {
  std::string source, image, log;
};

std::string setting(const char* name) {
  const char* text = std::getenv(name);
  return text ? text : "";
}

std::string read(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

std::string without_barrier(std::string source, int number) {
  size_t at = 0;
  for (int i = 0; i < number; i++) {
    at = source.find(kBarrier, at);
    if (at == std::string::npos) return source;
    at += std::strlen(kBarrier);
  }
  if (number) source.replace(at - std::strlen(kBarrier), std::strlen(kBarrier), "");
  return source;
}

bool has_option(int count, const char* const* options, const char* wanted) {
  for (int i = 0; i < count; i++)
    if (!std::strcmp(options[i], wanted)) return true;
  return false;
}

int give(const std::string& text, char* to) {
  return std::memcpy(to, text.c_str(), text.size() + 1), kGood;
}

}  // namespace

extern "C" {

const char* nvrtcGetErrorString(int result) {
  return result == kRefused ? "NVRTC_ERROR_COMPILATION" : "an error of the fake NVRTC";
}
int nvrtcGetNumSupportedArchs(int* count) { return *count = sizeof kArchs / sizeof *kArchs, kGood; }
int nvrtcGetSupportedArchs(int* archs) { return std::memcpy(archs, kArchs, sizeof kArchs), kGood; }

int nvrtcCreateProgram(void** program, const char* source, const char*, int, const char* const*,
                       const char* const*) {
  *program = new Program{source, "", ""};
  return kGood;
}
int nvrtcDestroyProgram(void** program) { return delete static_cast<Program*>(*program), kGood; }

int nvrtcCompileProgram(void* made, int count, const char* const* options) {
  for (const char* wanted : {"--fmad=false", "--ftz=false", "--prec-div=true", "--prec-sqrt=true"})
    if (!has_option(count, options, wanted)) return kInvalid;
  auto& program = *static_cast<Program*>(made);
  static std::atomic<int> number{0};
  std::string base = setting("FAKE_NVRTC_FOLDER") + "/" + std::to_string(getpid()) + "-" +
                     std::to_string(number++);
  std::ofstream(base + ".cu") << program.source;
  std::string source =
      without_barrier(program.source, std::atoi(setting("FAKE_NVRTC_MUTANT").c_str()));
  bool barriers = source.find(kBarrier) != std::string::npos;
  std::ofstream(base + ".cpp")
      << "#include \"" << setting("FAKE_NVRTC_HEADER") << "\"\nnamespace kernel {\n"
      << source << "}\n"
      << "extern \"C\" const size_t fake_argument_bytes = sizeof(kernel::Tensors);\n"
      << "extern \"C\" void fake_launch_of_kernel(unsigned blocks, unsigned threads, void* at) {\n"
      << "  auto call = [](void* at) { kernel::planner_fused(*static_cast<kernel::Tensors*>(at)); "
         "};\n"
      << "  fake::launch(blocks, threads, " << barriers << ", call, at);\n}\n";
  std::string command = setting("FAKE_NVRTC_COMPILER") + " -shared " + base + ".cpp -o " + base +
                        ".so 2> " + base + ".log";
  int status = std::system(command.c_str());
  program.log = read(base + ".log"), program.image = base + ".so";
  return status ? kRefused : kGood;
}

int nvrtcGetProgramLogSize(void* program, size_t* size) {
  return *size = static_cast<Program*>(program)->log.size() + 1, kGood;
}
int nvrtcGetProgramLog(void* program, char* to) {
  return give(static_cast<Program*>(program)->log, to);
}
int nvrtcGetCUBINSize(void* program, size_t* size) {
  return *size = static_cast<Program*>(program)->image.size() + 1, kGood;
}
int nvrtcGetCUBIN(void* program, char* to) {
  return give(static_cast<Program*>(program)->image, to);
}
int nvrtcGetPTXSize(void* program, size_t* size) { return nvrtcGetCUBINSize(program, size); }
int nvrtcGetPTX(void* program, char* to) { return nvrtcGetCUBIN(program, to); }

}  // extern "C"

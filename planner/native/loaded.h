// Functions of a library that is loaded by name; its prototypes are told by who asks.
#pragma once

#include <dlfcn.h>

#include <string>
#include <utility>

namespace planner {

// Null where there is no such library, or no name.
inline void* opened(const char* name) {
  return name ? dlopen(name, RTLD_NOW | RTLD_LOCAL) : nullptr;
}

// Sets pointers to functions; the first that is not there is told in `missing`.
class Loaded {
 public:
  Loaded(void* library, std::string& missing, std::string title)
      : library_(library), missing_(missing), title_(std::move(title)) {}

  template <typename Function>
  void find(const char* symbol, Function& member) {
    void* found = dlsym(library_, symbol);
    if (!found && missing_.empty()) missing_ = title_ + " has no " + symbol;
    member = reinterpret_cast<Function>(found);
  }

 private:
  void* library_;
  std::string& missing_;
  std::string title_;
};

}  // namespace planner

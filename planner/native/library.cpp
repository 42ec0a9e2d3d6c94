// What the shared library exports: ONNX Runtime's entry, and a few C functions for
// planner/native/__init__.py.
#include <dlfcn.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <mutex>

#include "cuda/driver.h"
#include "cuda/nvrtc.h"
#include "fused/operator.h"
#include "pool/pools.h"
#include "swap/operators.h"
#include "swap/swaps.h"

namespace planner {

Counts counts;
const ort::Functions* api = nullptr;

namespace {

std::atomic<bool> forked{false};
std::mutex registering;
constexpr const char* kRegistered = "planner.registered";

std::string entry(const ort::SessionOptions* options, const char* key) {
  int there = 0;
  succeed(api->HasSessionConfigEntry(options, key, &there));
  if (!there) return "";
  size_t size = 0;
  succeed(api->GetSessionConfigEntry(options, key, nullptr, &size));
  std::string text(size, '\0');
  succeed(api->GetSessionConfigEntry(options, key, text.data(), &size));
  return text.c_str();
}

int64_t number(const ort::SessionOptions* options, const char* key, int64_t otherwise) {
  std::string text = entry(options, key);
  if (text.empty()) return otherwise;
  char* end = nullptr;
  errno = 0;
  int64_t value = std::strtoll(text.c_str(), &end, 10);
  must(!*end && !errno && value >= 0, std::string("the session entry ") + key + " is '" + text +
                                          "'; it must be a whole number that is not negative");
  return value;
}

// The worker threads outlive every session: the library must never be unloaded.
void stay_loaded() {
  Dl_info where;
  if (dladdr(reinterpret_cast<void*>(&stay_loaded), &where))
    dlopen(where.dli_fname, RTLD_NOW | RTLD_NODELETE);
}

void load(const ort::ApiBase* base) {
  if (api) return;
  const ort::Api* table = base->GetApi(ort::kApiVersion);
  if (!table) return;
  stay_loaded();
  pthread_atfork(nullptr, nullptr, [] { forked = true; });
  api = new ort::Functions(table);
}

void register_all(ort::SessionOptions* options) {
  must(!is_forked(), forked_text());
  Settings settings;
  settings.check = number(options, "planner.check_swaps", 0) != 0;
  settings.link_mbps = number(options, "planner.link_mbps", 0);
  settings.link_jitter_us = number(options, "planner.link_jitter_us", 0);
  auto pool_bytes = size_t(number(options, "planner.pool_bytes", 0));
  int64_t page = std::max<int64_t>(4096, sysconf(_SC_PAGESIZE));
  auto page_bytes = size_t(number(options, "planner.page_bytes", page));
  auto spill_bytes = size_t(number(options, "planner.spill_bytes", 0));
  std::string folder = entry(options, "planner.disk_folder");
  settings.disk_bytes = number(options, "planner.disk_bytes", 0);
  if (!folder.empty()) settings.disk = &tier_in(folder);
  std::string kind = pool_bytes ? "a pool of " + std::to_string(pool_bytes) + " bytes" : "no pool";
  if (pool_bytes && spill_bytes) kind += " and " + std::to_string(spill_bytes) + " beside it";
  if (!folder.empty()) kind += " and a file in " + folder;
  std::string before = entry(options, kRegistered);  // for another session of these options
  must(before.empty() || before == kind,
       "these session options have planner's library with " + before + " already, and " + kind +
           " is asked for: give each session options of its own");
  if (before.empty() && pool_bytes) settings.pool = host_pool(pool_bytes, page_bytes, spill_bytes);
  if (pool_bytes) succeed(api->AddSessionConfigEntry(options, "session.use_env_allocators", "1"));
  succeed(api->DisableMemPattern(options));  // Hold says why
  if (!before.empty()) return;  // ONNX Runtime takes a domain once
  succeed(api->AddCustomOpDomain(options, domain_of(settings)));
  succeed(api->AddCustomOpDomain(options, fused::domain()));
  succeed(api->AddSessionConfigEntry(options, kRegistered, kind.c_str()));
}

}  // namespace

bool is_forked() { return forked; }

}  // namespace planner

using namespace planner;

PLANNER_EXPORT ort::Status* RegisterCustomOps(ort::SessionOptions* options,
                                              const ort::ApiBase* base) {
  std::lock_guard<std::mutex> lock(registering);
  load(base);
  if (!api) {
    ort::Functions first(base->GetApi(1));
    std::string text = std::string("planner.swap: onnxruntime ") + base->GetVersionString() +
                       " is too old for planner's library: install onnxruntime 1.18 or later";
    return first.CreateStatus(ort::kFail, text.c_str());
  }
  try {
    register_all(options);
    return nullptr;
  } catch (const std::exception& error) {
    return api->CreateStatus(ort::kInvalidArgument, error.what());
  }
}

// Writes at most `room` counts, in the order of planner::Counts; returns how many there are.
PLANNER_EXPORT int64_t planner_native_counts(int64_t* to, int64_t room) {
  auto all = reinterpret_cast<const std::atomic<int64_t>*>(&counts);
  int64_t there = sizeof counts / sizeof *all;
  for (int64_t i = 0; i < there && i < room; i++) to[i] = all[i].load();
  return there;
}

// Page-locked memory on the host; null where there is no driver, no context on this thread, or no
// memory.
PLANNER_EXPORT void* planner_native_page_locked(int64_t bytes) {
  void* made = nullptr;
  bool can = has_cuda_driver() && !is_forked();
  return can && !cuda::driver().host_alloc(&made, size_t(bytes), cuda::kPortable) ? made : nullptr;
}
PLANNER_EXPORT void planner_native_page_locked_free(void* made) {
  if (!is_forked()) cuda::driver().host_free(made);
}

// Why CUDA's compiler cannot be used; empty where it can.
PLANNER_EXPORT const char* planner_native_why_no_compiler() {
  return cuda::why_no_compiler().c_str();
}

// Ends every swap of the process, or of runs on this thread alone, for after a run that failed and
// while none is under way; returns how many.
PLANNER_EXPORT int64_t planner_native_drain(int64_t here) {
  if (is_forked()) return 0;
  return abandon([&](const Swap& swap) { return !here || swap.run.is_here(); });
}

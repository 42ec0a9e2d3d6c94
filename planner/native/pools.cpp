#include "pools.h"

#include <dlfcn.h>
#ifdef __linux__
#include <link.h>
#endif

#include <cstring>

PLANNER_EXPORT int64_t planner_native_pool(int64_t place, int64_t* to, int64_t room);

namespace planner {
namespace {

enum Place { kHost, kDevice };

struct Owner {
  std::mutex mutex;
  size_t pool_bytes = 0, page_bytes = 0;  // as asked for
  std::unique_ptr<Pool> pool;
};
Owner& owner(int place) {
  static auto* all = new Owner[2];  // never freed: sessions may close after static objects are gone
  return all[place == kDevice];
}

std::string refused_size(const Owner& there, size_t pool_bytes, size_t page_bytes) {
  auto size = [](size_t pool, size_t page) {
    return std::to_string(pool) + " bytes in pages of " + std::to_string(page);
  };
  return "this process has a memory pool of " + size(there.pool_bytes, there.page_bytes) +
         ", which holds " + std::to_string(there.pool->facts().asked_bytes) +
         " bytes; a session with a pool of " + size(pool_bytes, page_bytes) +
         " needs a process of its own, or the sessions before it closed";
}

// Locked by the caller. Keeps the pool that is there where its size is the same.
void resize(Owner& there, size_t pool_bytes, size_t page_bytes) {
  bool same = there.pool_bytes == pool_bytes && there.page_bytes == page_bytes;
  must(same || !there.pool || there.pool->is_empty(),
       there.pool ? refused_size(there, pool_bytes, page_bytes) : "");
  if (!same) there.pool.reset();
  there.pool_bytes = pool_bytes, there.page_bytes = page_bytes;
}

// Null where the request is refused; `why` says then what for.
__attribute__((noinline)) void* try_get(int place, size_t bytes, char* why, size_t room) {
  std::string text;
  try {
    must(!is_forked(), forked_text());
    Owner& there = owner(place);
    std::lock_guard<std::mutex> lock(there.mutex);
    if (place == kDevice && !there.pool)  // its context is that of the first thread that asks
      there.pool = std::make_unique<Pool>(device_pages(there.pool_bytes, there.page_bytes));
    must(bool(there.pool), "there is no memory pool");
    if (void* at = there.pool->get(bytes)) return at;
    text = "planner.pool: " + there.pool->last_refusal();
  } catch (const std::exception& error) {
    text = error.what();
  }
  std::strncpy(why, text.c_str(), room - 1), why[room - 1] = '\0';
  return nullptr;
}

using Throw = void (*)(const char*);

// libstdc++'s function that throws a std::runtime_error; null where that library is not loaded.
Throw find_throw() {
  void* library = dlopen("libstdc++.so.6", RTLD_NOW | RTLD_NOLOAD);
  return reinterpret_cast<Throw>(library ? dlsym(library, "_ZSt21__throw_runtime_errorPKc")
                                         : nullptr);
}
const Throw throw_theirs = find_throw();
[[noreturn]] __attribute__((noinline)) void throw_ours(const char* why) {
  throw std::runtime_error(why);
}

// ONNX Runtime writes to what an allocator gives it, null or not. Only an exception ends the
// operation, and its message then names it. ONNX Runtime catches those of the C++ library that it
// uses, which need not be the one that this file is compiled with; therefore libstdc++ is asked to
// throw. Nothing from here to ONNX Runtime may need unwinding: this function and its callers hold
// nothing but plain values.
void* get(int place, size_t bytes) {
  static thread_local char why[512];
  if (!bytes) return nullptr;
  if (void* at = try_get(place, bytes, why, sizeof why)) return at;
  if (throw_theirs) throw_theirs(why);
  throw_ours(why);
}

void put(int place, void* at) {
  if (!at || is_forked()) return;
  Owner& there = owner(place);
  std::lock_guard<std::mutex> lock(there.mutex);
  if (there.pool) there.pool->put(at);
}

struct HostAllocator : ort::Allocator {
  ort::MemoryInfo* info = nullptr;
  HostAllocator() : ort::Allocator{} {
    version = ort::kApiVersion;
    Alloc = Reserve = [](ort::Allocator*, size_t bytes) { return get(kHost, bytes); };
    Free = [](ort::Allocator*, void* at) { put(kHost, at); };
    Info = [](const ort::Allocator* self) -> const ort::MemoryInfo* {
      return static_cast<const HostAllocator*>(self)->info;
    };
    succeed(api->CreateMemoryInfo("Cpu", ort::kDeviceAllocator, 0, ort::kMemoryDefault, &info));
  }
};

// ONNX Runtime has one allocator of the CPU for all sessions that share it, and lets another take
// its place: it is registered anew for each session.
void register_allocator() {
  static auto* allocator = new HostAllocator;  // never freed: sessions keep it
  ort::Env* env = nullptr;                     // the process's: it exists, and is kept
  succeed(api->CreateEnv(ort::kLogWarning, "planner", &env));
  succeed(api->RegisterAllocator(env, allocator));
}

// Whether another copy of this library, of this version or another, is loaded and has a pool of the
// CPU.
bool others_have_a_pool() {
  using Facts = int64_t (*)(int64_t, int64_t*, int64_t);
  bool found = false;
#ifdef __linux__
  std::vector<std::string> loaded;
  auto add = [](dl_phdr_info* object, size_t, void* to) {
    static_cast<std::vector<std::string>*>(to)->push_back(object->dlpi_name);
    return 0;
  };
  dl_iterate_phdr(add, &loaded);
  for (const auto& name : loaded) {
    void* handle = name.empty() ? nullptr : dlopen(name.c_str(), RTLD_NOW | RTLD_NOLOAD);
    if (!handle) continue;
    auto facts = reinterpret_cast<Facts>(dlsym(handle, "planner_native_pool"));
    found = found || (facts && facts != planner_native_pool && facts(kHost, nullptr, 0) > 0);
    dlclose(handle);
  }
#endif
  return found;
}

}  // namespace

void use_host_pool(ort::SessionOptions* options, size_t pool_bytes, size_t page_bytes) {
  must(!others_have_a_pool(),
       "another copy of planner's library has a memory pool in this process; use one version of "
       "planner");
  Owner& there = owner(kHost);
  std::lock_guard<std::mutex> lock(there.mutex);
  bool same = there.pool_bytes == pool_bytes && there.page_bytes == page_bytes;
  std::unique_ptr<Pool> made;  // before the one that is there goes: this may fail
  if (!there.pool || (!same && there.pool->is_empty()))
    made = std::make_unique<Pool>(host_pages(pool_bytes, page_bytes));
  resize(there, pool_bytes, page_bytes);
  if (made) there.pool = std::move(made);
  register_allocator();
  succeed(api->AddSessionConfigEntry(options, "session.use_env_allocators", "1"));
}

bool is_of_host_pool(const void* at) {
  Owner& there = owner(kHost);
  std::lock_guard<std::mutex> lock(there.mutex);
  return there.pool && there.pool->has(at);
}

}  // namespace planner

using namespace planner;

// Sets the size of the device's pool, which is made at its first request; 0, or 1 where a pool of
// another size is in use.
PLANNER_EXPORT int64_t planner_native_device_pool(int64_t pool_bytes, int64_t page_bytes) {
  try {
    Owner& there = owner(kDevice);
    std::lock_guard<std::mutex> lock(there.mutex);
    resize(there, size_t(pool_bytes), size_t(page_bytes));
    return 0;
  } catch (const std::exception&) {
    return 1;
  }
}

// For the CUDA provider's options gpu_external_alloc, gpu_external_free, gpu_external_empty_cache.
PLANNER_EXPORT void* planner_native_device_alloc(size_t bytes) { return get(kDevice, bytes); }
PLANNER_EXPORT void planner_native_device_free(void* at) { put(kDevice, at); }
PLANNER_EXPORT void planner_native_device_empty() {}

// Writes at most `room` facts, in the order of planner::PoolFacts; 0 where there is no such pool.
PLANNER_EXPORT int64_t planner_native_pool(int64_t place, int64_t* to, int64_t room) {
  Owner& there = owner(int(place));
  if (is_forked()) return 0;
  std::lock_guard<std::mutex> lock(there.mutex);
  if (!there.pool) return 0;
  PoolFacts facts = there.pool->facts();
  auto all = reinterpret_cast<const int64_t*>(&facts);
  int64_t known = sizeof facts / sizeof *all;
  for (int64_t i = 0; i < known && i < room; i++) to[i] = all[i];
  return known;
}

PLANNER_EXPORT void planner_native_pool_restart(int64_t place) {
  Owner& there = owner(int(place));
  std::lock_guard<std::mutex> lock(there.mutex);
  if (there.pool) there.pool->restart_peaks();
}

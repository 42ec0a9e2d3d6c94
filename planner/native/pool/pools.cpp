#include "pool/pools.h"

#include <dlfcn.h>

#include <cstring>
#include <set>
#include <vector>

namespace planner {
namespace {

enum Place { kHost, kDevice };

std::mutex pools_mutex;  // of the two below
std::vector<HostPool*>& host_pools() {
  static auto* all = new std::vector<HostPool*>;
  return *all;
}
HostPool* served = nullptr;  // the pool of the sessions that are created now

// Of this thread and never another's, as its id would be later. Unlike this_thread(), it is still
// there for sessions that close when the thread's own objects are gone.
uint64_t thread_number() {
  static std::atomic<uint64_t> last{0};
  static thread_local const uint64_t number = ++last;
  return number;
}

struct DevicePool {
  std::mutex mutex;
  size_t pool_bytes = 0, page_bytes = 0;  // as asked for
  std::unique_ptr<Pool> pool;             // made at its first request
  std::set<uint64_t> freed_by;            // threads, since the device was last waited for

  void* get(size_t bytes, std::string& why) {
    std::lock_guard<std::mutex> lock(mutex);
    if (!pool) {  // its context is that of the first thread that asks
      must(pool_bytes, "there is no memory pool");
      pool = std::make_unique<Pool>(device_pages(pool_bytes, page_bytes));
    }
    wait_for_others();
    return pool->get(bytes, why);
  }
  void put(void* at) {
    std::lock_guard<std::mutex> lock(mutex);
    if (!pool) return;
    pool->put(at);
    freed_by.insert(thread_number());
  }

 private:
  // A buffer is freed when its last reader is issued, which need not have run. What the same thread
  // issues next is behind it on its stream; what another does is not.
  void wait_for_others() {
    if (freed_by.size() <= freed_by.count(thread_number())) return;
    pool->settle();
    freed_by.clear();
  }
};
DevicePool& device_pool() {
  static auto* pool = new DevicePool;  // sessions may close after static objects are gone
  return *pool;
}

// Null where the request is refused; `why` says then what for.
template <class From>
__attribute__((noinline)) void* try_get(From& from, size_t bytes, char* why, size_t room) {
  std::string text;
  try {
    must(!is_forked(), forked_text());
    if (void* at = from.get(bytes, text)) return at;
    text = "planner.pool: " + text;
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
template <class From>
void* get(From& from, size_t bytes) {
  static thread_local char why[512];
  if (!bytes) return nullptr;
  if (void* at = try_get(from, bytes, why, sizeof why)) return at;
  if (throw_theirs) throw_theirs(why);
  throw_ours(why);
}

}  // namespace

struct HostPool : ort::Allocator {
  std::unique_ptr<Pool> pool;
  const size_t spill_bytes;
  ort::MemoryInfo* info = nullptr;

  HostPool(size_t pool_bytes, size_t page_bytes, size_t spill_bytes)
      : ort::Allocator{},
        pool(std::make_unique<Pool>(host_pages(pool_bytes, page_bytes))),
        spill_bytes(spill_bytes) {
    version = ort::kApiVersion;
    Alloc = Reserve = [](ort::Allocator* self, size_t bytes) {
      return planner::get(*static_cast<HostPool*>(self), bytes);
    };
    Free = [](ort::Allocator* self, void* at) { static_cast<HostPool*>(self)->put(at); };
    Info = [](const ort::Allocator* self) -> const ort::MemoryInfo* {
      return static_cast<const HostPool*>(self)->info;
    };
    succeed(api->CreateMemoryInfo("Cpu", ort::kDeviceAllocator, 0, ort::kMemoryDefault, &info));
  }
  void* get(size_t bytes, std::string& why) { return pool->get(bytes, why, spill_bytes); }
  void put(void* at) {
    if (at && !is_forked()) pool->put(at);
  }
};

HostPool* host_pool(size_t pool_bytes, size_t page_bytes, size_t spill_bytes) {
  std::lock_guard<std::mutex> lock(pools_mutex);
  for (HostPool* pool : host_pools()) pool->pool->give_back();
  host_pools().push_back(new HostPool(pool_bytes, page_bytes, spill_bytes));
  return host_pools().back();
}

// ONNX Runtime has one allocator of the CPU for all sessions that share it, and lets another take
// its place. A session keeps the one that it was created with.
void serve_next(HostPool* pool) {
  std::lock_guard<std::mutex> lock(pools_mutex);
  ort::Env* env = nullptr;  // the process's: it exists, and is kept
  succeed(api->CreateEnv(ort::kLogWarning, "planner", &env));
  succeed(api->RegisterAllocator(env, pool));
  served = pool;
}

bool is_of(HostPool* pool, const void* at) { return pool->pool->has(at); }
bool has_pages(HostPool* pool, const void* at) { return pool->pool->has_pages(at); }

}  // namespace planner

using namespace planner;

// Sets the size of the device's pool, which is made at its first request; 0, or 1 where a pool of
// another size is in use.
PLANNER_EXPORT int64_t planner_native_device_pool(int64_t pool_bytes, int64_t page_bytes) {
  DevicePool& there = device_pool();
  std::lock_guard<std::mutex> lock(there.mutex);
  bool same = there.pool_bytes == size_t(pool_bytes) && there.page_bytes == size_t(page_bytes);
  if (!same && there.pool && !there.pool->is_empty()) return 1;
  if (!same) there.pool.reset();
  there.pool_bytes = size_t(pool_bytes), there.page_bytes = size_t(page_bytes);
  return 0;
}

// For the CUDA provider's options gpu_external_alloc, gpu_external_free, gpu_external_empty_cache.
PLANNER_EXPORT void* planner_native_device_alloc(size_t bytes) {
  return get(device_pool(), bytes);
}
PLANNER_EXPORT void planner_native_device_free(void* at) {
  if (at && !is_forked()) device_pool().put(at);
}
PLANNER_EXPORT void planner_native_device_empty() {}

// Calls `use` with the pool of a place, locked: of the CPU, that of the session created last.
template <class Use>
int64_t with_pool(int64_t place, Use use) {
  if (is_forked()) return 0;
  auto& mutex = place == kDevice ? device_pool().mutex : pools_mutex;
  std::lock_guard<std::mutex> lock(mutex);
  Pool* pool = place == kDevice ? device_pool().pool.get() : served ? served->pool.get() : nullptr;
  return pool ? use(*pool) : 0;
}

// Writes at most `room` facts, in the order of planner::PoolFacts; 0 where there is no such pool.
PLANNER_EXPORT int64_t planner_native_pool(int64_t place, int64_t* to, int64_t room) {
  return with_pool(place, [&](Pool& pool) {
    PoolFacts facts = pool.facts();
    auto all = reinterpret_cast<const int64_t*>(&facts);
    int64_t known = sizeof facts / sizeof *all;
    for (int64_t i = 0; i < known && i < room; i++) to[i] = all[i];
    return known;
  });
}

PLANNER_EXPORT void planner_native_pool_restart(int64_t place) {
  with_pool(place, [](Pool& pool) { return pool.restart_peaks(), int64_t(0); });
}

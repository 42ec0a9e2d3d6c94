// A stand-in for libcuda.so.1 on the CPU. A stream is a thread with a queue; the null stream is the
// calling thread, on which recording takes effect at once and waiting blocks. Every copy is late by
// a random while and slow, so that a wait that is missing shows. With FAKE_DRIVER_NO_WAIT, nobody
// waits for the device. FAKE_DRIVER_EVENTS says how many there can be. Device memory is host memory. A
// module is what the fake NVRTC made, or an image of the real one, which is looked at and not run.
#include <dlfcn.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <fstream>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

namespace {

constexpr int kGood = 0, kInvalid = 1, kOutOfMemory = 2;
constexpr size_t kGranularity = 4096;
constexpr unsigned kLateUs = 300;
using Address = unsigned long long;

struct Mark {  // one record of an event: what waits for it does not wait for later ones
  std::mutex mutex;
  std::condition_variable turned;
  bool reached = false;
};

struct Event {
  std::mutex mutex;
  std::shared_ptr<Mark> last;
};

class Stream {
 public:
  Stream() {
    std::thread([this] {
      for (;;) {
        std::unique_lock<std::mutex> lock(mutex_);
        there_.wait(lock, [this] { return !jobs_.empty(); });
        auto job = std::move(jobs_.front());
        jobs_.pop_front();
        lock.unlock();
        job();
      }
    }).detach();
  }
  void post(std::function<void()> job) {
    std::lock_guard<std::mutex> lock(mutex_);
    jobs_.push_back(std::move(job));
    there_.notify_one();
  }

 private:
  std::mutex mutex_;
  std::condition_variable there_;
  std::deque<std::function<void()>> jobs_;
};

std::mutex streams_mutex;
std::vector<Stream*> streams;

int on(void* stream, std::function<void()> job) {
  if (stream) static_cast<Stream*>(stream)->post(std::move(job));
  else job();
  return kGood;
}

int copy(void* to, const void* from, size_t bytes, void* stream) {
  return on(stream, [=] {
    static thread_local std::minstd_rand random{std::random_device{}()};
    std::this_thread::sleep_for(std::chrono::microseconds(random() % kLateUs));
    for (size_t at = 0; at < bytes; at += 16 << 10) {
      std::this_thread::sleep_for(std::chrono::microseconds(20));
      std::memcpy(static_cast<char*>(to) + at, static_cast<const char*>(from) + at,
                  std::min<size_t>(16 << 10, bytes - at));
    }
  });
}

void* at(Address address) { return reinterpret_cast<void*>(address); }

struct Module {
  void (*launch)(unsigned blocks, unsigned threads, void* argument) = nullptr;  // null: not here
  size_t argument_bytes = 0;
};

int number(const char* variable, int otherwise) {
  const char* text = std::getenv(variable);
  return text ? std::atoi(text) : otherwise;
}

int memory_file = -1;
off_t memory_end = 0;

}  // namespace

extern "C" {

int cuStreamCreate(void** stream, unsigned) {
  std::lock_guard<std::mutex> lock(streams_mutex);
  streams.push_back(new Stream);
  return *stream = streams.back(), kGood;
}
int cuEventCreate(void** event, unsigned) {
  static std::atomic<int> left{number("FAKE_DRIVER_EVENTS", 1 << 30)};
  if (left-- <= 0) return kOutOfMemory;
  return *event = new Event, kGood;
}
int cuEventDestroy_v2(void* event) { return delete static_cast<Event*>(event), kGood; }

int cuEventRecord(void* event, void* stream) {
  auto it = static_cast<Event*>(event);
  auto mark = std::make_shared<Mark>();
  std::unique_lock<std::mutex> lock(it->mutex);
  it->last = mark;
  lock.unlock();
  return on(stream, [mark] {
    std::lock_guard<std::mutex> lock(mark->mutex);
    mark->reached = true;
    mark->turned.notify_all();
  });
}
int cuStreamWaitEvent(void* stream, void* event, unsigned) {
  auto it = static_cast<Event*>(event);
  std::unique_lock<std::mutex> lock(it->mutex);
  auto mark = it->last;
  lock.unlock();
  if (!mark) return kGood;  // never recorded
  return on(stream, [mark] {
    std::unique_lock<std::mutex> lock(mark->mutex);
    mark->turned.wait(lock, [&] { return mark->reached; });
  });
}
int cuEventSynchronize(void* event) { return cuStreamWaitEvent(nullptr, event, 0); }

int cuMemcpyDtoHAsync_v2(void* host, Address device, size_t bytes, void* stream) {
  return copy(host, at(device), bytes, stream);
}
int cuMemcpyHtoDAsync_v2(Address device, const void* host, size_t bytes, void* stream) {
  return copy(at(device), host, bytes, stream);
}
int cuMemcpyDtoDAsync_v2(Address to, Address from, size_t bytes, void* stream) {
  return copy(at(to), at(from), bytes, stream);
}

int cuMemHostAlloc(void** memory, size_t bytes, unsigned) {
  const char* most = std::getenv("FAKE_DRIVER_HOST_BYTES");
  if (most && bytes > size_t(std::atoll(most))) return kOutOfMemory;
  *memory = std::malloc(bytes);
  return *memory ? kGood : kOutOfMemory;
}
int cuMemFreeHost(void* memory) { return std::free(memory), kGood; }

int cuCtxGetCurrent(void** context) { return *context = at(1), kGood; }
int cuCtxPushCurrent_v2(void* context) { return context == at(1) ? kGood : kInvalid; }
int cuCtxPopCurrent_v2(void** context) { return *context = at(1), kGood; }
int cuCtxGetDevice(int* device) { return *device = 0, kGood; }
int cuCtxSynchronize() {
  if (number("FAKE_DRIVER_NO_WAIT", 0)) return kGood;
  std::unique_lock<std::mutex> lock(streams_mutex);
  auto all = streams;
  lock.unlock();
  for (Stream* stream : all) {
    auto done = std::make_shared<std::promise<void>>();
    stream->post([done] { done->set_value(); });
    done->get_future().wait();
  }
  return kGood;
}
int cuGetErrorString(int, const char** text) {
  return *text = "an error of the fake driver", kGood;
}

// Virtual memory: a handle is a place in a file, plus one.
int cuMemGetAllocationGranularity(size_t* bytes, const void*, int) {
  return *bytes = kGranularity, kGood;
}
int cuMemCreate(unsigned long long* handle, size_t bytes, const void* properties,
                unsigned long long) {
  auto fields = static_cast<const int*>(properties);  // type, handle types, location's type and id
  if (fields[0] != 1 || fields[1] != 0 || fields[2] != 1 || fields[3] != 0) return kInvalid;
  if (bytes % kGranularity) return kInvalid;
  if (memory_file < 0) memory_file = memfd_create("fake", 0);
  *handle = memory_end + 1;
  memory_end += bytes;
  return ftruncate(memory_file, memory_end) ? kOutOfMemory : kGood;
}
int cuMemRelease(unsigned long long) { return kGood; }
int cuMemAddressReserve(Address* address, size_t bytes, size_t, Address, unsigned long long) {
  void* made = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  *address = reinterpret_cast<Address>(made);
  return made == MAP_FAILED ? kOutOfMemory : kGood;
}
int cuMemAddressFree(Address address, size_t bytes) { return munmap(at(address), bytes); }
int cuMemMap(Address address, size_t bytes, size_t, unsigned long long handle, unsigned long long) {
  void* made = mmap(at(address), bytes, PROT_NONE, MAP_SHARED | MAP_FIXED, memory_file, handle - 1);
  return made == MAP_FAILED ? kInvalid : kGood;
}
int cuMemUnmap(Address address, size_t bytes) { return mprotect(at(address), bytes, PROT_NONE); }
int cuMemSetAccess(Address address, size_t bytes, const void* access, size_t count) {
  auto fields = static_cast<const int*>(access);  // location's type and id, flags
  if (count != 1 || fields[0] != 1 || fields[1] != 0 || fields[2] != 3) return kInvalid;
  return mprotect(at(address), bytes, PROT_READ | PROT_WRITE);
}

int cuDriverGetVersion(int* version) {
  return *version = number("FAKE_DRIVER_VERSION", 13000), kGood;
}
int cuDeviceGetAttribute(int* value, int attribute, int) {
  int capability = number("FAKE_DRIVER_CAPABILITY", 90);
  if (attribute != 75 && attribute != 76) return kInvalid;
  return *value = attribute == 75 ? capability / 10 : capability % 10, kGood;
}
int cuModuleLoadDataEx(void** module, const void* image, unsigned, int*, void**) {
  auto text = static_cast<const char*>(image);
  auto made = new Module;
  *module = made;
  if (text[0] != '/' || text[1] == '/') {  // an ELF file of NVIDIA's, or PTX
    const char* path = std::getenv("FAKE_DRIVER_PTX");
    if (path) std::ofstream(path, std::ios::app) << text;
    bool is_elf = !std::memcmp(text, "\x7f" "ELF", 4) && text[18] == char(190);
    return is_elf || std::strstr(text, ".visible .entry planner_fused(") ? kGood : kInvalid;
  }
  void* library = dlopen(text, RTLD_NOW | RTLD_LOCAL);
  if (!library) return kInvalid;
  made->launch = reinterpret_cast<void (*)(unsigned, unsigned, void*)>(
      dlsym(library, "fake_launch_of_kernel"));
  made->argument_bytes = *static_cast<const size_t*>(dlsym(library, "fake_argument_bytes"));
  return kGood;
}
int cuModuleGetFunction(void** function, void* module, const char* name) {
  *function = module;
  return std::strcmp(name, "planner_fused") ? kInvalid : kGood;
}
int cuLaunchKernel(void* function, unsigned blocks, unsigned y, unsigned z, unsigned threads,
                   unsigned thread_y, unsigned thread_z, unsigned, void* stream, void** arguments,
                   void**) {
  bool is_line = y == 1 && z == 1 && thread_y == 1 && thread_z == 1;
  if (!is_line || !blocks || !threads || threads > 1024) return kInvalid;
  auto module = static_cast<Module*>(function);
  if (!module->launch) return kGood;
  auto first = static_cast<const char*>(arguments[0]);  // copied here, as by CUDA
  std::vector<char> argument(first, first + module->argument_bytes);
  return on(stream, [=]() mutable { module->launch(blocks, threads, argument.data()); });
}

// A kernel: a function that the stream runs.
int fake_launch(void* stream, void (*kernel)(void*), void* argument) {
  return on(stream, [=] { kernel(argument); });
}

}  // extern "C"

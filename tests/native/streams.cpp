// Random programs as ONNX Runtime issues them on a GPU: operations and copies are issued and not
// waited for, and a buffer is freed as soon as its last reader is issued, for the next to take.
// Buffers come from the device's pool. Each tensor is filled with a number of its own, which every
// reader checks when it runs. Two sessions on threads have a stream each, and share the pool.
// Compiled together with the library's sources and the fake driver.
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <functional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "cuda/driver.h"
#include "pool/pool.h"
#include "swap/slots.h"

extern "C" int fake_launch(void* stream, void (*kernel)(void*), void* argument);
extern "C" int cuStreamCreate(void** stream, unsigned flags);
extern "C" int64_t planner_native_device_pool(int64_t pool_bytes, int64_t page_bytes);
extern "C" void* planner_native_device_alloc(size_t bytes);
extern "C" void planner_native_device_free(void* at);
extern "C" int64_t planner_native_pool(int64_t place, int64_t* to, int64_t room);

namespace {

constexpr size_t kPageWords = 512, kPages = 24;  // the fake driver's pages have 4096 bytes

std::atomic<long> checks{0}, wrong{0};

struct Work {
  uint64_t* buffer;
  size_t words;
  uint64_t number;
  bool writes;
  long us;
};

void run(void* argument) {
  std::unique_ptr<Work> work(static_cast<Work*>(argument));
  std::this_thread::sleep_for(std::chrono::microseconds(work->us));
  bool same = true;
  for (size_t i = 0; i < work->words; i++) {
    if (work->writes) work->buffer[i] = work->number;
    else same = same && work->buffer[i] == work->number;
  }
  if (!work->writes) checks++;
  if (!same) wrong++;
}

enum State { kHere, kLeaving, kGone, kComing, kStoring };

struct Tensor {
  uint64_t number;
  uint64_t* buffer;
  size_t words;
  State state = kHere;
  planner::Slot* slot = nullptr;
  uint64_t* stored = nullptr;  // never freed: where a wait is left out, a copy may still write it
};

struct Memory {  // where buffers come from
  std::function<void*(size_t)> get;
  std::function<void(void*)> put;
};

Memory memory_of(planner::Pool& pool) {
  auto get = [&pool](size_t bytes) {
    std::string why;
    void* at = pool.get(bytes, why);
    if (!at) std::printf("the pool is too small: %s\n", why.c_str()), std::exit(2);
    return at;
  };
  return {get, [&pool](void* at) { pool.put(at); }};
}

class Program {
 public:
  Program(planner::Backend& backend, planner::Slots& slots, const Memory& memory, void* stream)
      : backend_(backend), slots_(slots), memory_(memory), stream_(stream) {}

  long play(unsigned seed) {
    std::minstd_rand random(seed);
    for (int step = 0; step < 100; step++) {
      size_t which = live_.empty() ? 0 : random() % live_.size();
      unsigned what = random() % 6;
      size_t words = kPageWords * (1 + random() % 7);
      if (what == 0 || live_.empty()) {
        if (words_ + words <= kPages * kPageWords) create(words, random() % 200);
      } else if (what == 1 && live_[which].state == kHere) retire(which);
      else if (what > 1) advance(live_[which], random() % 100);
    }
    while (!live_.empty()) {
      while (live_.back().state != kHere) advance(live_.back(), 0);
      retire(live_.size() - 1);
    }
    return swaps_;
  }

 private:
  uint64_t* allocate(size_t words) { return static_cast<uint64_t*>(memory_.get(words * 8)); }
  void issue(const Tensor& tensor, bool writes, long us) {
    fake_launch(stream_, run, new Work{tensor.buffer, tensor.words, tensor.number, writes, us});
  }
  void create(size_t words, long us) {
    words_ += words;
    live_.push_back({next_++, allocate(words), words});
    issue(live_.back(), true, us);
  }
  void retire(size_t which) {
    issue(live_[which], false, 0);
    memory_.put(live_[which].buffer);
    words_ -= live_[which].words;
    live_[which] = live_.back();
    live_.pop_back();
  }
  void advance(Tensor& tensor, long us) {  // one operator of the protocol further
    switch (tensor.state) {
      case kHere:
        tensor.stored = us % 3 ? nullptr : new uint64_t[tensor.words];
        tensor.slot = &slots_.take(tensor.stored ? 0 : tensor.words * 8);
        tensor.slot->lent = tensor.stored;
        tensor.slot->bytes = tensor.words * 8;
        tensor.slot->settings = &settings_;
        tensor.slot->has_pages = tensor.number % 2;  // a file: with and without staging
        backend_.begin_out(stream_, *tensor.slot, tensor.buffer);
        issue(tensor, false, 0);
        tensor.state = tensor.stored ? kStoring : kLeaving;
        swaps_++;
        return;
      case kStoring:
        backend_.end_out(stream_, *tensor.slot, tensor.buffer);
        slots_.give(*tensor.slot);
        tensor.state = kHere;
        fake_launch(stream_, run, new Work{tensor.stored, tensor.words, tensor.number, false, us});
        return;
      case kLeaving:
        backend_.end_out(stream_, *tensor.slot, tensor.buffer);
        memory_.put(tensor.buffer);
        tensor.state = kGone;
        return;
      case kGone:
        tensor.buffer = allocate(tensor.words);
        backend_.begin_in(stream_, *tensor.slot, tensor.buffer);
        tensor.state = kComing;
        return;
      case kComing:
        backend_.end_in(stream_, *tensor.slot, tensor.buffer);
        slots_.give(*tensor.slot);
        tensor.state = kHere;
        issue(tensor, false, us);
    }
  }
  const planner::Settings settings_{nullptr, true, 400, 200};  // check, link_mbps, link_jitter_us
  planner::Backend& backend_;
  planner::Slots& slots_;
  const Memory& memory_;
  void* stream_;
  std::vector<Tensor> live_;
  uint64_t next_ = 1;
  size_t words_ = 0;  // of all tensors, wherever they are
  long swaps_ = 0;
};

}  // namespace

int main(int, char** arguments) {  // programs, cpu or disk or cuda or threads, folder of the file
  const std::string kind = arguments[2];
  const int programs = std::atoi(arguments[1]), sessions = kind == "threads" ? 2 : 1;
  const bool cpu = kind == "cpu" || kind == "disk";
  auto in_file = planner::disk_backend(arguments[3]);
  planner::Backend& backend = kind == "disk" ? *in_file
                              : cpu          ? planner::cpu_backend()
                                             : planner::cuda_backend();
  planner::Slots slots(backend);
  slots.join();
  constexpr size_t kPage = kPageWords * 8;
  const size_t kept = sessions > 1 ? 16 : 0, bytes = (size_t(sessions) * kPages + kept) * kPage;
  planner::Pool pool(planner::host_pages(bytes, kPage));
  Memory memory{planner_native_device_alloc, planner_native_device_free};
  if (cpu) memory = memory_of(pool);
  else planner_native_device_pool(int64_t(bytes), kPage);
  // Threads find no four pages in a row: how they take turns does not tell whether buffers lie in
  // pieces.
  std::vector<void*> page(kept * 4);
  for (void*& at : page) at = memory.get(kPage);
  for (size_t i = 0; i < page.size(); i++)
    if (i % 4) memory.put(page[i]);
  std::atomic<long> swaps{0};
  std::vector<void*> streams(size_t(sessions), nullptr);
  std::vector<std::thread> threads;
  for (int i = 0; i < sessions; i++)
    threads.emplace_back([&, i] {
      if (!cpu) cuStreamCreate(&streams[size_t(i)], 1);
      for (int seed = i; seed < programs; seed += sessions)
        swaps += Program(backend, slots, memory, streams[size_t(i)]).play(unsigned(seed));
    });
  for (auto& thread : threads) thread.join();
  int64_t facts[16] = {0, 0, 0, 0, 0, 0, int64_t(pool.facts().mappings)};
  planner_native_pool(1, facts, 16);  // the device's; nothing is written where there is none
  // Another pool takes the place of one that is empty, while operations still run in its pages.
  if (kind == "cuda" && planner_native_device_pool(int64_t(bytes + kPage), kPage)) return 3;
  std::atomic<int> over{0};
  for (void* stream : streams)
    fake_launch(stream, [](void* count) { ++*static_cast<std::atomic<int>*>(count); }, &over);
  while (over < sessions) std::this_thread::sleep_for(std::chrono::milliseconds(2));
  wrong += planner::counts.violations;
  std::printf("%ld swaps, %ld checks, %ld wrong, %ld mappings\n", swaps.load(), checks.load(),
              wrong.load(), long(facts[6]));
  std::fflush(stdout);
  _exit(wrong ? 1 : 0);
}

// Random programs as ONNX Runtime issues them on a GPU: operations and copies are issued and not
// waited for, and a buffer is freed as soon as its last reader is issued, for the next to take.
// Buffers come from the device's pool. Each tensor is filled with a number of its own, which every
// reader checks when it runs. Compiled together with the library's sources and the fake driver.
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <random>
#include <thread>
#include <vector>

#include "cuda/driver.h"
#include "pool/pool.h"
#include "swap/slots.h"

extern "C" int fake_launch(void* stream, void (*kernel)(void*), void* argument);
extern "C" int cuStreamCreate(void** stream, unsigned flags);

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

class Program {
 public:
  Program(planner::Backend& backend, planner::Slots& slots, planner::Pool& pool, void* stream)
      : backend_(backend), slots_(slots), pool_(pool), stream_(stream) {}

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
  uint64_t* allocate(size_t words) {
    auto at = static_cast<uint64_t*>(pool_.get(words * 8));
    if (!at) std::printf("the pool is too small: %s\n", pool_.last_refusal().c_str()), std::exit(2);
    return at;
  }
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
    pool_.put(live_[which].buffer);
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
        pool_.put(tensor.buffer);
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
  planner::Pool& pool_;
  void* stream_;
  std::vector<Tensor> live_;
  uint64_t next_ = 1;
  size_t words_ = 0;  // of all tensors, wherever they are
  long swaps_ = 0;
};

}  // namespace

int main(int, char** arguments) {  // programs, cpu or cuda or disk, folder of the file
  bool disk = arguments[2] == std::string("disk"), cpu = disk || arguments[2] == std::string("cpu");
  auto in_file = planner::disk_backend(arguments[3]);
  planner::Backend& backend = disk  ? *in_file
                              : cpu ? planner::cpu_backend()
                                    : planner::cuda_backend();
  planner::Slots slots(backend);
  slots.join();
  constexpr size_t kBytes = kPages * kPageWords * 8, kPage = kPageWords * 8;
  planner::Pool pool(cpu ? planner::host_pages(kBytes, kPage)
                         : planner::device_pages(kBytes, kPage));
  void* stream = nullptr;
  if (!cpu) cuStreamCreate(&stream, 1);
  long swaps = 0;
  for (int seed = 0; seed < std::atoi(arguments[1]); seed++)
    swaps += Program(backend, slots, pool, stream).play(seed);
  std::atomic<bool> over{false};
  fake_launch(stream, [](void* flag) { *static_cast<std::atomic<bool>*>(flag) = true; }, &over);
  while (!over) std::this_thread::sleep_for(std::chrono::milliseconds(2));
  wrong += planner::counts.violations;
  std::printf("%ld swaps, %ld checks, %ld wrong, %ld mappings\n", swaps, checks.load(),
              wrong.load(), long(pool.facts().mappings));
  std::fflush(stdout);
  _exit(wrong ? 1 : 0);
}

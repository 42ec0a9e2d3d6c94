// Copies by two worker threads, one a direction, first come first served: a GPU's copy engines on a
// CPU. The compute stream is the thread that runs the nodes, so that waiting for a copy blocks it.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <random>
#include <thread>

#include "slots.h"

namespace planner {
namespace {

using Clock = std::chrono::steady_clock;
constexpr size_t kLinkPieceBytes = 256 << 10;
constexpr unsigned char kCanary = 0xA5;

uint64_t checksum(const void* data, size_t bytes) {
  auto at = static_cast<const unsigned char*>(data);
  uint64_t sum = bytes;
  for (; bytes >= 8; at += 8, bytes -= 8) {
    uint64_t word;
    std::memcpy(&word, at, 8);
    sum = (sum ^ word) * 0x9E3779B97F4A7C15ull + (sum >> 29);
  }
  for (; bytes; at++, bytes--) sum = sum * 31 + *at;
  return sum;
}

void check(bool holds, const char* otherwise) {
  if (!holds && ++counts.violations <= 5)
    std::fprintf(stderr, "planner.swap: violation: %s\n", otherwise);
}

class Worker {
 public:
  Worker() : thread_([this] { work(); }) { thread_.detach(); }  // it lives as long as the process
  void post(std::function<void()> job) {
    std::lock_guard<std::mutex> lock(mutex_);
    jobs_.push_back(std::move(job));
    there_.notify_one();
  }

 private:
  void work() {
    for (;;) {
      std::unique_lock<std::mutex> lock(mutex_);
      there_.wait(lock, [this] { return !jobs_.empty(); });
      auto job = std::move(jobs_.front());
      jobs_.pop_front();
      lock.unlock();
      job();
    }
  }
  std::mutex mutex_;
  std::condition_variable there_;
  std::deque<std::function<void()>> jobs_;
  std::thread thread_;
};

class Cpu : public Backend {
 public:
  void open(Slot& slot) override {
    if (!slot.capacity) return;
    slot.host = std::aligned_alloc(4096, (slot.capacity + 4095) / 4096 * 4096);
    must(slot.host, "no memory for a host slot of " + std::to_string(slot.capacity) + " bytes");
    std::memset(slot.host, 0, slot.capacity);  // its pages are there before the first copy
  }
  void close(Slot& slot) override { std::free(slot.host); }

  void begin_out(void*, Slot& slot, const void* x) override {
    if (slot.settings->check) slot.sum = checksum(x, slot.bytes);
    set(slot, slot.out_done, false);
    out_.post([this, &slot, x] {
      pieces(slot, [&](size_t at, size_t bytes) {
        std::memcpy(static_cast<char*>(slot.host) + at, static_cast<const char*>(x) + at, bytes);
      });
      set(slot, slot.out_done, true);
    });
  }
  void end_out(void*, Slot& slot, const void* x) override {
    wait(slot, slot.out_done);
    if (!slot.settings->check) return;
    check(checksum(x, slot.bytes) == slot.sum,
          "a tensor was written to before its copy out was done");
    check(checksum(slot.host, slot.bytes) == slot.sum,
          "a host slot does not hold what was copied out");
  }
  void begin_in(void*, Slot& slot, void* y) override {
    if (slot.settings->check) {
      if (slot.lent) slot.sum = checksum(slot.lent, slot.bytes);
      std::memset(y, kCanary, slot.bytes);
    }
    set(slot, slot.in_done, false);
    in_.post([this, &slot, y] {
      pieces(slot, [&](size_t at, size_t bytes) {
        auto to = static_cast<unsigned char*>(y) + at;
        if (slot.settings->check)
          check(std::all_of(to, to + bytes, [](unsigned char byte) { return byte == kCanary; }),
                "a buffer was used while it was copied into");
        std::memcpy(to, static_cast<const char*>(slot.data()) + at, bytes);
      });
      set(slot, slot.in_done, true);
    });
  }
  void end_in(void*, Slot& slot, const void* y) override {
    wait(slot, slot.in_done);
    if (slot.settings->check)
      check(checksum(y, slot.bytes) == slot.sum,
            "what was copied in was written to before the copy was done");
  }
  void copy(void*, void* to, const void* from, size_t bytes) override {
    std::memcpy(to, from, bytes);
  }
  void settle(Slot& slot) override {
    wait(slot, slot.out_done);
    wait(slot, slot.in_done);
  }

 private:
  static void set(Slot& slot, bool& done, bool value) {
    std::lock_guard<std::mutex> lock(slot.mutex);
    done = value;
    slot.moved.notify_all();
  }
  static void wait(Slot& slot, const bool& done) {
    std::unique_lock<std::mutex> lock(slot.mutex);
    if (done) return;
    auto start = Clock::now();
    slot.moved.wait(lock, [&done] { return done; });
    counts.waits++;
    counts.waited_us +=
        std::chrono::duration_cast<std::chrono::microseconds>(Clock::now() - start).count();
  }
  // Copies in pieces that arrive as a link of the session's bandwidth brings them; the wait takes
  // no core.
  template <typename Copy>
  static void pieces(const Slot& slot, const Copy& copy) {
    static thread_local std::minstd_rand random{std::random_device{}()};
    if (slot.settings->link_jitter_us)
      std::this_thread::sleep_for(
          std::chrono::microseconds(random() % slot.settings->link_jitter_us));
    auto start = Clock::now();
    for (size_t at = 0; at < slot.bytes; at += kLinkPieceBytes) {
      size_t bytes = std::min(kLinkPieceBytes, slot.bytes - at);
      if (int64_t rate = slot.settings->link_mbps)  // bytes a microsecond
        std::this_thread::sleep_until(start + std::chrono::microseconds((at + bytes) / rate));
      copy(at, bytes);
    }
  }
  Worker out_, in_;
};

}  // namespace

Backend& cpu_backend() {
  static Backend* backend = new Cpu;  // never freed: its threads outlive every session
  return *backend;
}

}  // namespace planner

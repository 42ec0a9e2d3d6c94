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

#ifdef __linux__
#include <sys/prctl.h>
#endif

#include "swap/store.h"

namespace planner {
namespace {

using Clock = std::chrono::steady_clock;
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
#ifdef __linux__
    prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0);  // a throttled link's waits end 50 us late without
#endif
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

// One for each direction, which all sessions share.
Worker& out_worker() {
  static auto* worker = new Worker;  // never freed: it outlives every session
  return *worker;
}
Worker& in_worker() {
  static auto* worker = new Worker;
  return *worker;
}

class Memory : public Store {
 public:
  void open(Slot& slot) override {
    if (!slot.capacity) return;
    slot.host = std::aligned_alloc(kSlotPageBytes, slot.capacity);
    must(slot.host, "no memory for a host slot of " + std::to_string(slot.capacity) + " bytes");
    std::memset(slot.host, 0, slot.capacity);  // its pages are there before the first copy
    counts.slot_bytes += slot.capacity;
  }
  void close(Slot& slot) override {
    std::free(slot.host);
    counts.slot_bytes -= slot.capacity;
  }
  size_t piece_bytes() const override { return 64 << 10; }
  void write(const Slot& slot, size_t at, const void* from, size_t bytes, bool) override {
    std::memcpy(static_cast<char*>(slot.host) + at, from, bytes);
  }
  void read(const Slot& slot, size_t at, void* to, size_t bytes, bool) override {
    std::memcpy(to, static_cast<const char*>(slot.host) + at, bytes);
  }
};

class Cpu : public Backend {
 public:
  explicit Cpu(std::unique_ptr<Store> store) : store_(std::move(store)) {}
  void start() override { store_->start(); }
  void stop() override { store_->stop(); }
  void reserve(size_t bytes) override { store_->reserve(bytes); }
  void open(Slot& slot) override { store_->open(slot); }
  void close(Slot& slot) override { store_->close(slot); }

  void begin_out(void*, Slot& slot, const void* x) override {
    if (slot.settings->check) {
      slot.sum = checksum(x, slot.bytes);
      if (slot.lent) std::memset(slot.lent, kCanary, slot.bytes);
    }
    auto job = [this, &slot, x, pages = slot.has_pages, since = Clock::now()] {
      end(slot, slot.out_done, since, [&](size_t at, size_t bytes) {
        auto from = static_cast<const char*>(x) + at;
        if (!slot.lent) return store_->write(slot, at, from, bytes, pages);
        void* to = place(slot, slot.lent, at, bytes);
        std::memcpy(to, from, bytes);
      });
    };
    begin(out_worker(), slot, slot.out_done, job);
  }
  void end_out(void*, Slot& slot, const void* x) override {
    wait(slot, slot.out_done);
    succeeded(slot);
    if (!slot.settings->check) return;
    check(checksum(x, slot.bytes) == slot.sum,
          "a tensor was written to before its copy out was done");
    std::vector<char> kept(slot.lent ? 0 : slot.bytes);
    for (size_t at = 0; at < kept.size(); at += store_->piece_bytes())
      store_->read(slot, at, kept.data() + at, piece(slot, at), false);
    check(checksum(slot.lent ? slot.lent : kept.data(), slot.bytes) == slot.sum,
          "a slot does not hold what was copied out");
  }
  void begin_in(void*, Slot& slot, void* y) override {
    if (slot.settings->check) {
      if (slot.lent) slot.sum = checksum(slot.lent, slot.bytes);
      std::memset(y, kCanary, slot.bytes);
    }
    auto job = [this, &slot, y, pages = slot.has_pages, since = Clock::now()] {
      end(slot, slot.in_done, since, [&](size_t at, size_t bytes) {
        void* to = place(slot, y, at, bytes);
        if (slot.lent) std::memcpy(to, static_cast<const char*>(slot.lent) + at, bytes);
        else store_->read(slot, at, to, bytes, pages);
      });
    };
    begin(in_worker(), slot, slot.in_done, job);
  }
  void end_in(void*, Slot& slot, const void* y) override {
    wait(slot, slot.in_done);
    succeeded(slot);
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
  // Where a piece goes in what is copied into, which nothing else may have touched.
  static void* place(const Slot& slot, void* start, size_t at, size_t bytes) {
    auto to = static_cast<unsigned char*>(start) + at;
    if (slot.settings->check)
      check(std::all_of(to, to + bytes, [](unsigned char byte) { return byte == kCanary; }),
            "a buffer was used while it was copied into");
    return to;
  }
  // A copy that no worker has is under way for nobody: it would be waited for without end.
  static void begin(Worker& worker, Slot& slot, bool& done, std::function<void()> job) {
    auto set = [&](bool to) {
      std::lock_guard<std::mutex> lock(slot.mutex);
      done = to;
      slot.failure.clear();
    };
    set(false);
    try {
      worker.post(std::move(job));
    } catch (...) {
      set(true);
      throw;
    }
  }
  // A worker's part of a copy: what goes wrong in it is an error of the operator that waits.
  template <typename Copy>
  void end(Slot& slot, bool& done, Clock::time_point since, const Copy& copy) {
    std::string failure;
    try {
      pieces(slot, since, copy);
    } catch (const std::exception& error) {
      failure = error.what();
    }
    std::lock_guard<std::mutex> lock(slot.mutex);
    done = true;
    slot.failure = failure;
    slot.moved.notify_all();
  }
  static void succeeded(Slot& slot) {
    std::lock_guard<std::mutex> lock(slot.mutex);
    if (!slot.failure.empty()) throw std::runtime_error(slot.failure);
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
  size_t piece(const Slot& slot, size_t at) const {
    return std::min(store_->piece_bytes(), slot.bytes - at);
  }
  // Copies in pieces that arrive as a link of the session's bandwidth brings them; the wait takes
  // no core. The link is free again when it would be, however late its thread woke up.
  template <typename Copy>
  void pieces(const Slot& slot, Clock::time_point since, const Copy& copy) const {
    using std::chrono::microseconds;
    static thread_local std::minstd_rand random{std::random_device{}()};
    static thread_local Clock::time_point free_at{};
    if (slot.settings->link_jitter_us) {
      std::this_thread::sleep_for(microseconds(random() % slot.settings->link_jitter_us));
      since = Clock::now();
    }
    const int64_t rate = slot.settings->link_mbps;  // bytes a microsecond
    const auto start = std::max(since, free_at);
    for (size_t at = 0; at < slot.bytes; at += store_->piece_bytes()) {
      size_t bytes = piece(slot, at);
      if (rate) std::this_thread::sleep_until(start + microseconds((at + bytes) / rate));
      copy(at, bytes);
    }
    if (rate) free_at = start + microseconds(slot.bytes / rate);
  }
  const std::unique_ptr<Store> store_;
};

}  // namespace

Backend& cpu_backend() {
  static Backend* backend = new Cpu(std::make_unique<Memory>());  // never freed, as its threads
  return *backend;
}

std::unique_ptr<Backend> disk_backend(const std::string& folder) {
  return std::make_unique<Cpu>(file_store(folder));
}

}  // namespace planner

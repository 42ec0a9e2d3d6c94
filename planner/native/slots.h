// Host slots, and the backend that copies between them and tensors.
#pragma once

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "common.h"

namespace planner {

// Memory on the host for one swap: taken by SwapOut or LoadIn, given back by SwapInDone.
struct Slot {
  size_t capacity = 0;         // bytes of `host`
  void* host = nullptr;        // null for LoadIn, which reads the caller's array
  const void* lent = nullptr;  // LoadIn: the caller's array
  size_t bytes = 0;            // of the tensor that is in it now
  int type = ort::kUndefined;  // and its element type and dims
  std::vector<int64_t> dims;
  const Settings* settings = nullptr;
  uint64_t sum = 0;  // planner.check_swaps: the checksum of what was swapped out

  std::mutex mutex;  // CPU: guards the three below
  std::condition_variable moved;
  bool out_done = true, in_done = true;

  void* context = nullptr;  // CUDA: the context that it was made in
  void* event[4] = {};      // CUDA: x ready, copied out, y free, copied in
  bool out_used = false,
       in_used = false;  // CUDA: whether the events of the copies were ever recorded

  const void* data() const { return lent ? lent : host; }
};

// Copies beside the compute stream. `stream` is ONNX Runtime's: a CUDA stream, or null on the CPU.
class Backend {
 public:
  virtual ~Backend() = default;
  virtual void open(Slot& slot) = 0;  // allocates slot.capacity bytes; throws where there are none
  virtual void close(Slot& slot) = 0;
  virtual void begin_out(void* stream, Slot& slot, const void* x) = 0;
  virtual void end_out(void* stream, Slot& slot, const void* x) = 0;
  virtual void begin_in(void* stream, Slot& slot, void* y) = 0;
  virtual void end_in(void* stream, Slot& slot, const void* y) = 0;
  virtual void copy(void* stream, void* to, const void* from, size_t bytes) = 0;
  virtual void settle(Slot& slot) = 0;  // the host waits for the slot's copies, from any thread
};

Backend& cpu_backend();
Backend& cuda_backend();  // throws where there is no driver
bool has_cuda_driver();

// Slots of one backend, kept by size, and freed with the last kernel that uses the backend.
class Slots {
 public:
  explicit Slots(Backend& backend) : backend_(backend) {}
  Slot& take(size_t bytes);
  void give(Slot& slot);
  void join();   // a kernel that may take slots
  void leave();  // and its end

 private:
  void drop_free();
  Backend& backend_;
  std::mutex mutex_;
  std::map<size_t, std::vector<std::unique_ptr<Slot>>> free_;  // by capacity
  std::map<Slot*, std::unique_ptr<Slot>> taken_;
  int64_t users_ = 0;
};

}  // namespace planner

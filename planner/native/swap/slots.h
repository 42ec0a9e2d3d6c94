// Host slots, and the backend that copies between them and tensors.
#pragma once

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "common.h"

namespace planner {

constexpr size_t kSlotPageBytes = 4096;  // slots take whole ones
inline size_t in_slot_pages(size_t bytes) {
  return (bytes + kSlotPageBytes - 1) / kSlotPageBytes * kSlotPageBytes;
}

// Room for one swap, in the host's memory or in a file: taken by SwapOut, LoadIn or StoreOut, given
// back by SwapInDone, or by the SwapOutDone of a StoreOut.
struct Slot {
  size_t capacity = 0;         // bytes of the room: whole pages; 0 for LoadIn and StoreOut
  void* host = nullptr;        // where it lies in memory
  size_t at = 0;               // where it lies in a file: from this byte on
  void* lent = nullptr;        // in its place: what LoadIn reads, or StoreOut writes
  size_t bytes = 0;            // of the tensor that is in it now
  int type = ort::kUndefined;  // and its element type and dims
  std::vector<int64_t> dims;
  const Settings* settings = nullptr;
  const void* session = nullptr;  // that took it last
  uint64_t sum = 0;  // planner.check_swaps: the checksum of what was swapped out

  std::mutex mutex;  // CPU: guards the three below
  std::condition_variable moved;
  bool out_done = true, in_done = true;
  bool has_pages = false;  // CPU: the tensor in memory has its pages to itself
  std::string failure;     // CPU: of the copy that ended last; the mutex guards it, too

  void* context = nullptr;  // CUDA: the context that it was made in
  void* event[4] = {};      // CUDA: x ready, copied out, y free, copied in
  bool out_used = false,
       in_used = false;  // CUDA: whether the events of the copies were ever recorded

  void* data() const { return lent ? lent : host; }
};

// Copies beside the compute stream. `stream` is ONNX Runtime's: a CUDA stream, or null on the CPU.
class Backend {
 public:
  virtual ~Backend() = default;
  virtual void start() {}          // before the first kernel that uses it
  virtual void stop() {}           // after the last one
  virtual void reserve(size_t) {}  // so many bytes of slots will be asked for, by all sessions
  virtual void open(Slot& slot) = 0;  // finds room for slot.capacity bytes, or throws
  virtual void close(Slot& slot) = 0;
  virtual void begin_out(void* stream, Slot& slot, const void* x) = 0;
  virtual void end_out(void* stream, Slot& slot, const void* x) = 0;
  virtual void begin_in(void* stream, Slot& slot, void* y) = 0;
  virtual void end_in(void* stream, Slot& slot, const void* y) = 0;
  virtual void copy(void* stream, void* to, const void* from, size_t bytes) = 0;
  virtual void settle(Slot& slot) = 0;  // the host waits for the slot's copies, from any thread
};

Backend& cpu_backend();
std::unique_ptr<Backend> disk_backend(const std::string& folder);  // the CPU's: slots in a file
Backend& cuda_backend();  // throws where there is no driver
bool has_cuda_driver();

// Slots of one backend, kept by size, and freed with the session that took them last.
class Slots {
 public:
  explicit Slots(Backend& backend) : backend_(backend) {}
  Slot& take(size_t bytes, const void* session = nullptr);
  void give(Slot& slot);
  void join(size_t reserved_bytes = 0);  // a kernel that may take slots; bytes for its session
  void leave();                          // and its end
  void end_session(const void* session, size_t reserved_bytes);

 private:
  void drop_free(const void* session = nullptr);  // those that it took last; null: all
  Backend& backend_;
  std::mutex mutex_;
  std::map<size_t, std::vector<std::unique_ptr<Slot>>> free_;  // by capacity
  std::map<Slot*, std::unique_ptr<Slot>> taken_;
  int64_t users_ = 0;
  size_t reserved_ = 0;  // bytes
};

}  // namespace planner

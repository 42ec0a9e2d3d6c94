// Copies on two streams of the library's own, ordered with ONNX Runtime's compute stream by events.
// The host waits for nothing, but where a swap is abandoned.
#include <cstdlib>

#include "cuda/driver.h"
#include "swap/slots.h"

namespace planner {
namespace {

enum { kReady, kOut, kGo, kIn };  // Slot::event

// Tests leave out one wait; see common.h.
enum Wait { kEndOut = 1, kOutAfterCompute, kInAfterCompute, kEndIn, kSlotReuse };
bool left_out(Wait wait) {
  if constexpr (!kTestBuild) return false;
  static const char* text = std::getenv("PLANNER_TEST_MUTANT");
  return text && std::atoi(text) == wait;
}

class Cuda : public Backend {
 public:
  Cuda() { must(d_.missing.empty(), d_.missing); }
  void open(Slot& slot) override {
    d_.check(d_.context_get(&slot.context), "cuCtxGetCurrent");
    if (slot.capacity) {
      auto result = d_.host_alloc(&slot.host, slot.capacity, cuda::kPortable);
      must(!result,
           "no page-locked memory for a host slot of " + std::to_string(slot.capacity) + " bytes");
      counts.slot_bytes += slot.capacity;
    }
    try {
      for (void*& event : slot.event)
        d_.check(d_.event_create(&event, cuda::kNoTiming), "cuEventCreate");
    } catch (...) {
      close(slot);
      throw;
    }
  }
  void close(Slot& slot) override {
    within(slot, [&] {
      for (void*& event : slot.event) {
        if (event) d_.event_destroy(event);
        event = nullptr;
      }
      if (slot.host) d_.host_free(slot.host);
    });
    slot.host = nullptr;  // open() may try again
    counts.slot_bytes -= slot.capacity;
  }

  void begin_out(void* compute, Slot& slot, const void* x) override {
    void* stream = streams(slot).out;
    if (slot.in_used)
      wait(stream, slot.event[kIn], kSlotReuse);  // the last copy that read this slot
    record(slot.event[kReady], compute);
    wait(stream, slot.event[kReady], kOutAfterCompute);
    d_.check(d_.copy_to_host(slot.data(), cuda::address(x), slot.bytes, stream),
             "cuMemcpyDtoHAsync");
    record(slot.event[kOut], stream);
    slot.out_used = true;
  }
  void end_out(void* compute, Slot& slot, const void*) override {
    wait(compute, slot.event[kOut], kEndOut);
  }
  void begin_in(void* compute, Slot& slot, void* y) override {
    void* stream = streams(slot).in;
    record(slot.event[kGo], compute);
    wait(stream, slot.event[kGo], kInAfterCompute);  // y's earlier users, and the copy out
    d_.check(d_.copy_to_device(cuda::address(y), slot.data(), slot.bytes, stream),
             "cuMemcpyHtoDAsync");
    record(slot.event[kIn], stream);
    slot.in_used = true;
  }
  void end_in(void* compute, Slot& slot, const void*) override {
    wait(compute, slot.event[kIn], kEndIn);
  }
  void copy(void* compute, void* to, const void* from, size_t bytes) override {
    d_.check(d_.copy_on_device(cuda::address(to), cuda::address(from), bytes, compute),
             "cuMemcpyDtoDAsync");
  }
  void settle(Slot& slot) override {
    within(slot, [&] {  // errors are of a context that is gone, and its copies with it
      if (slot.out_used) d_.event_wait(slot.event[kOut]);
      if (slot.in_used) d_.event_wait(slot.event[kIn]);
    });
  }

 private:
  struct Streams {
    void* out = nullptr;
    void* in = nullptr;
  };
  // A slot is used in the context that it was made in: its events belong to one device.
  Streams streams(const Slot& slot) {
    void* context = nullptr;
    d_.check(d_.context_get(&context), "cuCtxGetCurrent");
    must(context == slot.context,
         "sessions on several CUDA devices in one process cannot swap yet");
    std::lock_guard<std::mutex> lock(mutex_);
    Streams& found = streams_[context];
    if (!found.out) d_.check(d_.stream_create(&found.out, cuda::kNonBlocking), "cuStreamCreate");
    if (!found.in) d_.check(d_.stream_create(&found.in, cuda::kNonBlocking), "cuStreamCreate");
    return found;
  }
  void record(void* event, void* stream) {
    d_.check(d_.event_record(event, stream), "cuEventRecord");
  }
  void wait(void* stream, void* event, Wait which) {
    if (!left_out(which)) d_.check(d_.stream_wait(stream, event, 0), "cuStreamWaitEvent");
  }
  template <typename Work>
  void within(const Slot& slot, const Work& work) {
    void* was = nullptr;
    if (d_.context_push(slot.context)) return;
    work();
    d_.context_pop(&was);
  }
  const cuda::Driver& d_ = cuda::driver();
  std::mutex mutex_;
  std::map<void*, Streams> streams_;  // by context
};

}  // namespace

Backend& cuda_backend() {
  static Backend* backend =
      new Cuda;  // never freed: sessions may close after static objects are gone
  return *backend;
}

}  // namespace planner

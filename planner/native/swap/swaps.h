// Swaps under way: which address names which, what each keeps alive, and who began it.
#pragma once

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "swap/slots.h"

namespace planner {

// A backend with its slots; there is one of each backend in a process, and one of each folder.
struct Tier {
  Backend& backend;
  Slots slots;
  explicit Tier(Backend& of) : backend(of), slots(of) {}
};
Tier& tier_of(bool cuda);
Tier& tier_in(const std::string& folder);

// Keeps the buffers of tensors of one type while a copy reads or writes them, even where its run
// fails and ONNX Runtime lets go of them: a sequence shares the tensors that it is made of. A buffer
// must be the tensor's own: not a part of a memory pattern's block, which is why RegisterCustomOps
// turns the pattern off, and not an earlier tensor's, which is why SwapIn tells no dims.
class Hold {
 public:
  Hold() = default;
  explicit Hold(const std::vector<const ort::Value*>& tensors) {
    succeed(api->CreateValue(tensors.data(), tensors.size(), ort::kSequence, &sequence_));
  }
  ~Hold() { release(); }
  Hold(const Hold&) = delete;
  Hold& operator=(Hold&& other) noexcept {
    release();
    std::swap(sequence_, other.sequence_);
    return *this;
  }
  void release() {
    if (sequence_) api->ReleaseValue(sequence_);
    sequence_ = nullptr;
  }

 private:
  ort::Value* sequence_ = nullptr;
};

// Names this thread for as long as it lives. Its id would be another's later.
inline const std::shared_ptr<char>& this_thread() {
  static thread_local auto name = std::make_shared<char>();
  return name;
}

struct Run {
  const void* session = nullptr;  // its SwapBegin's kernel
  std::weak_ptr<char> thread;

  bool is_here() const { return thread.lock() == this_thread(); }
};

// One swap. Where it goes before it is finished, its copies are waited for first.
struct Swap {
  Swap(Tier& of, size_t capacity, Run by)
      : tier(of), slot(of.slots.take(capacity, by.session)), run(std::move(by)) {}
  ~Swap() {
    if (!finished) tier.backend.settle(slot);
    tier.slots.give(slot);
  }
  Swap(const Swap&) = delete;
  Tier& tier;
  Slot& slot;
  Run run;
  Hold held;                // x until SwapOutDone, y until SwapInDone, and h beside it
  const void* x = nullptr;  // where SwapOut read it
  bool finished = false;
};

// Begins a run that the address `r` names; returns how many swaps an earlier run of this session on
// this thread left: it failed half-way. They are ended, and those on threads that are gone.
int64_t begin_run(const void* session, const void* r);
Run run_of(const void* r);  // throws where no SwapBegin made r

void name_swap(const void* key, std::unique_ptr<Swap> swap);
std::unique_ptr<Swap> take_swap(const void* key,
                                const char* reader);  // throws where the key names none

// Waits for all copies that are under way now.
void wait_for_copies();

// Waits for the copies of the swaps that `is` picks, and forgets these swaps; returns how many.
int64_t abandon(const std::function<bool(const Swap&)>& is);
void forget_session(const void* session);

}  // namespace planner

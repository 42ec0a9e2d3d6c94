#include "swap/slots.h"

namespace planner {

Slot& Slots::take(size_t bytes) {
  std::lock_guard<std::mutex> lock(mutex_);
  bytes = in_slot_pages(bytes);
  std::unique_ptr<Slot> slot;
  auto& same = free_[bytes];
  if (!same.empty()) {
    slot = std::move(same.back());
    same.pop_back();
  } else {
    slot = std::make_unique<Slot>();
    slot->capacity = bytes;
    try {
      backend_.open(*slot);
    } catch (const std::exception&) {
      drop_free();  // slots of other sizes may be what is in the way
      backend_.open(*slot);
    }
    counts.slots++;
  }
  counts.live_slots++;
  Slot& found = *slot;
  taken_[&found] = std::move(slot);
  return found;
}

void Slots::give(Slot& slot) {
  std::lock_guard<std::mutex> lock(mutex_);
  auto at = taken_.find(&slot);
  slot.lent = nullptr;
  free_[slot.capacity].push_back(std::move(at->second));
  taken_.erase(at);
  counts.live_slots--;
}

void Slots::join(size_t reserved_bytes) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (!users_) backend_.start();
  try {
    backend_.reserve(reserved_bytes);
  } catch (const std::exception&) {
    if (!users_) backend_.stop();
    throw;
  }
  users_++;
}

void Slots::leave() {
  std::lock_guard<std::mutex> lock(mutex_);
  if (--users_) return;
  drop_free();
  backend_.stop();
}

void Slots::drop_free() {
  for (auto& [capacity, slots] : free_)
    for (auto& slot : slots) {
      backend_.settle(*slot);
      backend_.close(*slot);
      counts.slots--;
    }
  free_.clear();
}

}  // namespace planner

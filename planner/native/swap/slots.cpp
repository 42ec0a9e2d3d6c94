#include "swap/slots.h"

#include <algorithm>

namespace planner {

Slot& Slots::take(size_t bytes, const void* session) {
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
  found.session = session;
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
  size_t all = reserved_ + in_slot_pages(reserved_bytes);
  try {
    backend_.reserve(all);
  } catch (const std::exception&) {
    if (!users_) backend_.stop();
    throw;
  }
  reserved_ = all;
  users_++;
}

void Slots::end_session(const void* session, size_t reserved_bytes) {
  std::lock_guard<std::mutex> lock(mutex_);
  reserved_ -= in_slot_pages(reserved_bytes);
  drop_free(session);
}

void Slots::leave() {
  std::lock_guard<std::mutex> lock(mutex_);
  if (--users_) return;
  drop_free();
  backend_.stop();
}

void Slots::drop_free(const void* session) {
  for (auto& [capacity, slots] : free_) {
    auto first = std::partition(slots.begin(), slots.end(), [&](auto& slot) {
      return session && slot->session != session;
    });
    for (auto at = first; at != slots.end(); ++at) {
      backend_.settle(**at);
      backend_.close(**at);
      counts.slots--;
    }
    slots.erase(first, slots.end());
  }
}

}  // namespace planner

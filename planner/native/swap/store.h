// Where the CPU's slots lie: in memory, or in a file of a folder.
#pragma once

#include "swap/slots.h"

namespace planner {

class Store {
 public:
  virtual ~Store() = default;
  virtual void start() {}
  virtual void stop() {}
  virtual void reserve(size_t) {}
  virtual void open(Slot& slot) = 0;
  virtual void close(Slot& slot) = 0;
  virtual size_t piece_bytes() const = 0;  // copies are made in pieces of so many
  // A piece of the slot that starts at its byte `at`; both throw where that cannot be done. With
  // `pages`, the memory of the piece has the pages to itself that it lies in.
  virtual void write(const Slot& slot, size_t at, const void* from, size_t bytes, bool pages) = 0;
  virtual void read(const Slot& slot, size_t at, void* to, size_t bytes, bool pages) = 0;
};

std::unique_ptr<Store> file_store(const std::string& folder);

}  // namespace planner

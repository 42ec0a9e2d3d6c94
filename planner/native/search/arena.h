// ONNX Runtime's arena as it is under a cap: regions double from a first one and never merge, and
// every chunk is split. The same as planner/runtime/memory/bfc.py, with which a test compares it.
#pragma once

#include <cstdint>
#include <vector>

namespace planner::search {

constexpr int64_t kNone = -1;

// What an order must keep, and how the arena rounds and grows. In bytes.
struct Limits {
  int64_t arena, first, in_use;  // the arena's; its first region's; the most in use
  int64_t rounding, most_step;
};

class Arena {
 public:
  explicit Arena(const Limits& limits);

  // A chunk; kNone where the arena may not hold another region for it.
  int64_t take(int64_t bytes);
  void give_back(int64_t chunk);

  int64_t peak() const { return peak_; }
  // Bytes that were missing in one piece when it was full.
  int64_t missing() const { return missing_; }
  void set_missing(int64_t bytes) { missing_ = bytes; }

 private:
  struct Chunk {
    int64_t offset, size;
    int64_t below, above;  // its neighbours in its region
    bool is_free;
  };
  struct Free {
    int64_t size, offset, chunk;
    bool operator<(const Free& other) const {
      return size < other.size || (size == other.size && offset < other.offset);
    }
  };

  bool grow(int64_t bytes);
  void add(int64_t offset, int64_t size, int64_t below, int64_t above);
  void remember(int64_t chunk);
  void forget(std::vector<Free>::iterator at);
  std::vector<Free>::iterator place_of(int64_t chunk);
  int64_t largest() const { return free_.empty() ? 0 : free_.back().size; }

  Limits limits_;
  std::vector<Chunk> chunks_;  // all that ever were
  std::vector<Free> free_;     // ascending
  int64_t in_use_ = 0, peak_ = 0, held_ = 0, missing_ = 0;
  int64_t next_, end_ = 0;  // the next region's bytes, and where the last one begins
};

}  // namespace planner::search

// ONNX Runtime's arena of one region, in which every chunk is split. The same as
// planner/runtime/memory/bfc.py, with which a test compares it.
#pragma once

#include <cstdint>
#include <vector>

namespace planner::search {

constexpr int64_t kNone = -1;

// What an order must keep, in bytes.
struct Limits {
  int64_t arena, in_use;  // the arena's; the most in use
};

class Arena {
 public:
  explicit Arena(int64_t bytes);

  // A chunk; kNone where no free chunk is large enough.
  int64_t take(int64_t bytes);
  void give_back(int64_t chunk);

  int64_t peak() const { return peak_; }
  // Bytes that were missing in one piece when it was full.
  int64_t missing() const { return missing_; }
  void set_missing(int64_t bytes) { missing_ = bytes; }

 private:
  struct Chunk {
    int64_t offset, size;
    int64_t below, above;  // its neighbours
    bool is_free;
  };
  struct Free {
    int64_t size, offset, chunk;
    bool operator<(const Free& other) const {
      return size < other.size || (size == other.size && offset < other.offset);
    }
  };

  void add(int64_t offset, int64_t size, int64_t below, int64_t above);
  void remember(int64_t chunk);
  void forget(std::vector<Free>::iterator at);
  std::vector<Free>::iterator place_of(int64_t chunk);
  int64_t largest() const { return free_.empty() ? 0 : free_.back().size; }

  std::vector<Chunk> chunks_;  // all that ever were
  std::vector<Free> free_;     // ascending
  int64_t in_use_ = 0, peak_ = 0, missing_ = 0;
};

}  // namespace planner::search

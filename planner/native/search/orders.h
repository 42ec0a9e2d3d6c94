// Orders of a run's units that an arena has room for.
#pragma once

#include <vector>

#include "arena.h"
#include "arrays.h"

namespace planner::search {

enum Event : int64_t { kTake, kScratch, kReturn, kRead };

// What a run asks of the arena, unit by unit, as planner/fit/demands.py names it. Sizes in bytes.
struct Demands {
  Array<const int64_t> event_at, event, subject;
  Array<const int64_t> size, readers;  // by buffer
  Array<const int64_t> reserved, fed;
  Array<const int64_t> before_at, before, after_at, after;
};

// How far an order gets: units from the first on that there is room for in each of two runs that
// follow each other; bytes in one piece that the next one would need more; the most bytes in use.
struct Reach {
  int64_t units, missing, peak;
};

constexpr int64_t kDisordered = -1;  // a unit reads what is not there

class Orders {
 public:
  explicit Orders(const Demands& demands);

  // Of the units `order`, from the first on. `units` is kDisordered where a unit reads what none
  // before it makes.
  Reach reach(Array<const int64_t> order, const Limits& limits);

 private:
  enum class Step { kDone, kFull, kDisordered };

  int64_t run(Array<const int64_t> order, int64_t until, Arena& arena, const Limits& limits);
  int64_t run_units(Array<const int64_t> order, int64_t until, Arena& arena, const Limits& limits);
  Step step(int64_t unit, Arena& arena);
  bool take(int64_t bytes, int64_t& chunk, Arena& arena);
  bool read(int64_t buffer, Arena& arena);
  void give_back(std::vector<int64_t>& chunks, Arena& arena);

  Demands d_;
  std::vector<int64_t> chunk_of_, unread_;  // by buffer: the chunk it is in; reads that are to come
  std::vector<int64_t> scratch_, fed_;      // chunks of one kernel; of what a run begins with
};

// Units near the first one that there is no room for are moved: so far before it and by so much at
// most, each span as likely.
struct Climb {
  Array<const int64_t> spans;
  int64_t tries;
  Random random;
};

struct Climbed {
  int64_t units, replays;  // that there is room for then; of the order, as work done
};

// Changes the order by so many moves. A move is kept unless there is room for fewer units, or for as
// many with more bytes missing.
Climbed climb(const Demands& demands, Array<int64_t> order, const Limits& limits,
              const Climb& climb);

}  // namespace planner::search

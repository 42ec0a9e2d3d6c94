#include "orders.h"

#include <algorithm>

#include "../export.h"

namespace planner::search {

Orders::Orders(const Demands& demands)
    : d_(demands), chunk_of_(demands.size.size), unread_(demands.size.size) {}

Reach Orders::reach(Array<const int64_t> order, const Limits& limits) {
  Arena arena(limits.arena);
  for (int64_t bytes : d_.reserved)
    if (arena.take(bytes) == kNone) return {0, arena.missing(), arena.peak()};
  int64_t ran = order.size;
  for (int i = 0; i < 2 && ran != kDisordered; i++) {
    int64_t missing = arena.missing(), before = ran;
    arena.set_missing(0);
    ran = run(order, before, arena, limits);
    if (ran == before) arena.set_missing(missing);
  }
  return {ran, arena.missing(), arena.peak()};
}

// How many units of a run there is room for, of the first `until`.
int64_t Orders::run(Array<const int64_t> order, int64_t until, Arena& arena, const Limits& limits) {
  std::fill(chunk_of_.begin(), chunk_of_.end(), kNone);
  std::copy(d_.readers.begin(), d_.readers.end(), unread_.begin());
  fed_.clear();
  bool has_room = true;
  for (int64_t i = 0; i < d_.fed.size && has_room; i++) {
    int64_t chunk;
    has_room = take(d_.fed[i], chunk, arena);
    if (has_room) fed_.push_back(chunk);
  }
  int64_t ran = run_units(order, has_room ? until : 0, arena, limits);
  for (int64_t chunk : chunk_of_)
    if (chunk != kNone) arena.give_back(chunk);
  give_back(fed_, arena);
  return ran;
}

int64_t Orders::run_units(Array<const int64_t> order, int64_t until, Arena& arena,
                          const Limits& limits) {
  for (int64_t ran = 0; ran < until; ran++) {
    Step done = step(order[ran], arena);
    if (done == Step::kDisordered) return kDisordered;
    if (done == Step::kFull || arena.peak() > limits.in_use) return ran;
  }
  return until;
}

Orders::Step Orders::step(int64_t unit, Arena& arena) {
  scratch_.clear();
  for (int64_t e = d_.event_at[unit]; e < d_.event_at[unit + 1]; e++) {
    int64_t whom = d_.subject[e], chunk;
    bool has_room = true;
    if (d_.event[e] == kTake) {
      has_room = take(d_.size[whom], chunk_of_[whom], arena);
    } else if (d_.event[e] == kScratch) {
      has_room = take(whom, chunk, arena);
      if (has_room) scratch_.push_back(chunk);
    } else if (d_.event[e] == kRead) {
      if (!read(whom, arena)) return Step::kDisordered;
    } else {
      give_back(scratch_, arena);
    }
    if (has_room) continue;
    give_back(scratch_, arena);
    return Step::kFull;
  }
  return Step::kDone;
}

bool Orders::take(int64_t bytes, int64_t& chunk, Arena& arena) {
  chunk = arena.take(bytes);
  return chunk != kNone;
}

// One read of a buffer less is to come; false where it is not there.
bool Orders::read(int64_t buffer, Arena& arena) {
  if (--unread_[buffer]) return true;
  if (chunk_of_[buffer] == kNone) return false;
  arena.give_back(chunk_of_[buffer]);
  chunk_of_[buffer] = kNone;
  return true;
}

// The last one first.
void Orders::give_back(std::vector<int64_t>& chunks, Arena& arena) {
  for (; !chunks.empty(); chunks.pop_back()) arena.give_back(chunks.back());
}

namespace {

constexpr double kBehind = 0.15;
// Of a span: how far behind the first unit without room units are moved, which may go before it.

class Climber {
 public:
  Climber(const Demands& demands, Array<int64_t> order, const Limits& limits)
      : d_(demands), orders_(demands), limits_(limits), order_(order), place_(order.size) {
    for (int64_t i = 0; i < order.size; i++) place_[order[i]] = i;
    best_ = reach();
  }

  int64_t units() const { return best_.units; }
  int64_t replays() const { return replays_; }

  void try_move(int64_t span, const Random& random) {
    int64_t last = order_.size - 1;
    double behind = double(span) * (kBehind - (1 + kBehind) * random.uniform());
    int64_t i = std::clamp<int64_t>(best_.units + int64_t(behind), 0, last);
    int64_t unit = order_[i];
    int64_t low = std::max<int64_t>(0, i - span), high = std::min(last, i + span);
    for (int64_t e = d_.before_at[unit]; e < d_.before_at[unit + 1]; e++)
      low = std::max(low, place_[d_.before[e]] + 1);
    for (int64_t e = d_.after_at[unit]; e < d_.after_at[unit + 1]; e++)
      high = std::min(high, place_[d_.after[e]] - 1);
    int64_t j = low + random.below(high - low + 1);
    if (i == j || std::min(i, j) > best_.units) return;
    move(i, j);
    Reach now = reach();
    bool is_good = now.units > best_.units ||
                   (now.units == best_.units && now.missing <= best_.missing);
    if (is_good) best_ = now;
    else move(j, i);
  }

 private:
  Reach reach() {
    replays_++;
    return orders_.reach({order_.data, order_.size}, limits_);
  }

  // Moves what is at place i to place j, and what is between by one.
  void move(int64_t i, int64_t j) {
    int64_t* at = order_.data;
    if (i < j) std::rotate(at + i, at + i + 1, at + j + 1);
    else std::rotate(at + j, at + i, at + i + 1);
    for (int64_t k = std::min(i, j); k <= std::max(i, j); k++) place_[order_[k]] = k;
  }

  const Demands& d_;
  Orders orders_;
  Limits limits_;
  Array<int64_t> order_;
  std::vector<int64_t> place_;  // of each unit in the order
  Reach best_;
  int64_t replays_ = 0;
};

}  // namespace

Climbed climb(const Demands& demands, Array<int64_t> order, const Limits& limits,
              const Climb& climb) {
  Climber climber(demands, order, limits);
  for (int64_t i = 0; i < climb.tries; i++) {
    if (climber.units() == order.size || climber.units() == kDisordered) break;
    climber.try_move(climb.spans[climb.random.below(climb.spans.size)], climb.random);
  }
  return {climber.units(), climber.replays()};
}

}  // namespace planner::search

using namespace planner::search;

// For how many units of the order there is room.
PLANNER_EXPORT int64_t planner_search_reach(const Demands* demands,
                                            const Array<const int64_t>* order, const Limits* limits,
                                            Reach* reached) {
  return planner::unless_out_of_memory([&] {
    *reached = Orders(*demands).reach(*order, *limits);
    return 0;
  });
}

// See orders.h.
PLANNER_EXPORT int64_t planner_search_climb(const Demands* demands, const Array<int64_t>* order,
                                            const Limits* limits, const Climb* moves,
                                            Climbed* climbed) {
  return planner::unless_out_of_memory([&] {
    *climbed = climb(*demands, *order, *limits, *moves);
    return 0;
  });
}

// Plans for little memory: the base order within a capacity, and what is in the way is dropped. See
// planner/search/eviction.py.
#pragma once

#include <vector>

#include "arrays.h"

namespace planner::search {

// What a schedule is asked for. The score of a tensor is cost^(cost_halves / 2) / (bytes *
// distance^distance_power); the least is dropped first.
struct Evict {
  int64_t capacity;
  int64_t cost_halves, distance_power;
  int64_t in_order;   // all missing tensors are made in base order, not depth first
  int64_t most_work;  // scores and runs, after which it is given up
  Random random;      // blurs scores, unless it is null
  Array<int32_t> runs;  // filled with the operations, in turn
};

constexpr int64_t kStuck = -1;

class Eviction {
 public:
  Eviction(const Problem& problem, const Evict& asked);

  // The number of runs, or kStuck: a dead end, more runs than there is room for, or too much work.
  int64_t run();

  int64_t work() const { return work_; }

 private:
  struct Waiting {
    int32_t op;
    std::vector<int32_t> pins;  // inputs that were made for it
  };
  struct Scored {
    int64_t depth;
    double score;
    int32_t tensor;
  };

  void find_last_needs();
  void find_needs();
  void find_overwrites();
  bool run_base(int32_t op);
  bool make_missing();
  bool make_in_order();
  void wait(int32_t op);
  void leave(const Waiting& waiting);
  bool is_awaited(int32_t op) const;
  void ran(const Waiting& waiting);
  void forget(int32_t op);
  void put(int32_t t);
  void drop(int32_t t);
  bool make_room(int32_t op);
  int64_t missing_bytes(int32_t op) const;
  void score_all(int32_t op);
  void drop_for_good(int64_t& over);
  template <class May>
  void drop_those(int64_t& over, May may);
  void overwrite(int32_t op, int64_t& over);
  bool is_input(int32_t op, int32_t t) const;
  bool is_overwritten_anyway(int32_t op, int64_t pair) const;
  bool may_return(int32_t t) const { return may_run_again_[p_.producer[t]]; }
  bool may_be_lost(int32_t t, int32_t by);
  bool no_more_use(int32_t t, int32_t by) const;
  void lose(int32_t t, int32_t by);
  double cost_again(int32_t t) const;
  double score(int32_t t);

  Problem p_;
  Evict asked_;
  double whole_us_ = 0;
  int64_t room_, work_ = 0, done_ = 0;
  int32_t at_ = 0;
  std::vector<int32_t> last_;     // base operation at which a tensor may be of use last; -1: none
  std::vector<int64_t> need_;     // bytes to run an operation on an empty device
  std::vector<int32_t> source_;   // by pair: the input that is written over; -1: none
  std::vector<uint8_t> there_, may_run_again_;
  std::vector<int32_t> resident_, place_;  // tensors that may be dropped, and where they stand there
  std::vector<int32_t> pinned_, waits_, depth_, next_use_;
  std::vector<double> cost_;  // of making a tensor again, when it was dropped
  std::vector<Waiting> waiting_;
  std::vector<Scored> scored_;
  std::vector<int32_t> dropped_, stack_, missing_;
  std::vector<int64_t> seen_;
  int64_t tick_ = 0;
};

}  // namespace planner::search

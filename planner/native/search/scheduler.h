// From decisions to a schedule: run the base order, bring back what is missing just in time.
#pragma once

#include <vector>

#include "arrays.h"

namespace planner::search {

constexpr int64_t kOverflow = -1;  // the schedule outgrew its arrays: such a plan is no good

// Before a base operation whose input is not on the device, the tensor is swapped in if it was
// swapped out, and otherwise its producer runs again, and so on up the graph. What was brought back
// stays until its next base use. What a recompute reads and that cannot be brought back is kept for
// it.
class Scheduler {
 public:
  Scheduler(const Problem& problem, const Steps& steps);

  // Writes the actions of a plan; returns how many, or kOverflow. Any plan gives a valid schedule:
  // a tensor that is needed, gone, and whose producer may not run again is kept on instead (the
  // plan is changed).
  int64_t run(const Plan& plan);

 private:
  enum class Outcome { kDone, kOverflow, kLost };

  Outcome run_through(const Plan& plan);
  void restart(const Plan& plan);
  void find_missing(int64_t op);
  void need(int32_t t);
  Outcome bring_back(const Plan& plan);
  bool find_reruns(const Plan& plan);
  bool run_again();
  void let_go_again(const Plan& plan);
  void settle(const Plan& plan, int32_t t, bool is_for_another);
  void run_base(const Plan& plan, int32_t op);
  void pass_event(const Plan& plan, int32_t t);
  void copy_in(int32_t t);
  void keep_on(const Plan& plan, int32_t t);

  void add(Kind kind, int32_t target) {
    steps_.kind[count_] = kind;
    steps_.target[count_++] = target;
  }
  bool has_room(int64_t more) const { return count_ + more + 8 < steps_.kind.size; }

  Problem p_;
  Steps steps_;
  int64_t count_ = 0;

  // by tensor: where it is, how often it was used, and the last operation that missed it
  std::vector<uint8_t> resident_, on_host_, pending_;
  std::vector<int32_t> next_use_;
  std::vector<int64_t> seen_, wanted_;
  std::vector<int64_t> again_;  // by operation: the last one that it ran again for
  std::vector<int32_t> missing_, stack_, reruns_;  // of the operation at hand
  std::vector<int32_t> early_head_, early_next_;  // gaps closed early, in lists by operation
  bool any_early_ = false;
  int64_t tick_ = 0;  // of the operation at hand, in all runs
};

}  // namespace planner::search

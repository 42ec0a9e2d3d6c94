// Change decisions, replay, keep what is better.
#pragma once

#include "placing.h"
#include "scheduler.h"

namespace planner::search {

// Decide `choice` at the gaps, `batch` at a time.
struct Change {
  Array<const int64_t> gaps;
  int64_t choice, batch;
};

// Random changes at the gaps; neighbours among them should be near in time.
struct Annealing {
  Array<const int64_t> gaps;
  int64_t iterations;
  Random random;
};

// The cost of the plan and the time of the best one, which are updated; the price is of a byte over
// the capacity.
struct Heat {
  double cost_us, best_us, temperature_us, price_us_per_byte;
};

class Mover {
 public:
  // The steps are scratch.
  Mover(const Problem& problem, const Steps& steps, const Plan& plan);

  // Keeps what fits and is faster; keeping a tensor only needs to be no slower. Takes and returns
  // the plan's time; NaN: not known yet.
  double change(const Change& change, double time_us);

  // Keeps changes by the rule of Metropolis on the cost: time + price x bytes over. `best` is the
  // best plan that fits. Returns how often it got better.
  int64_t anneal(const Plan& best, const Annealing& annealing, Heat& heat);

 private:
  struct Value {
    int64_t peak_bytes;  // kBroken where the plan has no schedule
    double time_us;
  };
  // Beside the operations, the copies are placed once, which is quick; the time of a plan that does
  // not fit is that on one stream.
  Value evaluate(const Plan& plan);
  bool decide(Array<const int64_t> gaps, uint8_t choice);
  void flip(int64_t gap, const Random& random);
  void flip_decided(int64_t gap, double r, const Random& random);
  void propose(Array<const int64_t> gaps, const Random& random);

  Problem p_;
  Steps steps_;
  Plan plan_;
  std::vector<uint8_t> choice_, released_;
  std::vector<int32_t> early_;
  Plan tried_;  // in the arrays above
  Scheduler scheduler_;
  Replayer replayer_;
};

}  // namespace planner::search

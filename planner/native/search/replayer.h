// Replay a schedule: live bytes at each action, its peak, and its time.
#pragma once

#include <utility>
#include <vector>

#include "arrays.h"

namespace planner::search {

struct Replay {
  int64_t peak_bytes;
  double time_us;
  int64_t copies;  // of tensors, made by operations and swaps
};

// The same semantics as planner/simulate, which judges the result.
class Replayer {
 public:
  Replayer(const Problem& problem, const Steps& steps);

  // Of the first `count` actions, copies on the stream of the operations; `live` is left in the
  // steps.
  Replay run(int64_t count);

  // The time on three engines of the actions that were replayed last; starts and ends are left in
  // the steps.
  double overlapped(int64_t count);

 private:
  struct Copy {
    int32_t tensor, birth, end;
    uint8_t frees, to_end;  // an operation writes over it; it stays to the end
  };
  struct Times {
    double made, read_until;
  };
  using Release = std::pair<double, int64_t>;  // when, bytes

  void replay_run(int32_t step, int32_t op);
  void write_in_place(int32_t step, int32_t op);
  void make(int32_t step, int32_t t, bool to_end);
  Replay summed(int64_t count, double time_us);

  double run_at(int64_t step, int32_t op);
  double copy_out_at(int64_t step, int32_t t);
  double copy_in_at(int64_t step, int32_t t);
  void make_at(int64_t step, int32_t t, double done);
  void read_to(int64_t step, int32_t t, double done);
  void wait_for(int64_t need);
  void release(double when, int64_t bytes);

  Problem p_;
  Steps steps_;
  std::vector<int32_t> newest_;  // by tensor: its newest copy
  std::vector<uint8_t> ran_;     // by operation
  std::vector<Copy> copies_;
  std::vector<Times> times_;    // by copy
  std::vector<double> at_host_;  // by tensor: when it is there
  std::vector<Release> releases_;  // a heap, soonest first
  double now_ = 0, free_out_ = 0, free_in_ = 0;
  int64_t used_ = 0, made_ = 0;
};

}  // namespace planner::search

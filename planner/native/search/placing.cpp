#include "placing.h"

#include <algorithm>
#include <functional>
#include <queue>

namespace planner::search {
namespace {

// A copy: the run after which it may go, the run before which it must, and behind which it is
// listed.
struct Move {
  int32_t tensor, ready, due, slot;
};

class Placement {
 public:
  Placement(const Problem& problem, const Steps& steps, int64_t count)
      : p_(problem), steps_(steps), count_(count) {
    find_runs();
    if (has_copies()) find_copies();
  }

  bool has_copies() const { return int64_t(run_op_.size()) < count_; }

  // Times of the runs, one after the other.
  void reckon() {
    double now = 0;
    for (size_t r = 0; r < run_op_.size(); r++) {
      starts_[r] = now;
      ends_[r] = now += p_.duration[run_op_[r]];
    }
    starts_.back() = now;
  }

  // Times of the runs, as they were replayed last.
  void read_times() {
    size_t r = 0;
    for (int64_t i = 0; i < count_; i++) {
      if (steps_.kind[i] != kRun) continue;
      starts_[r] = steps_.start[i];
      ends_[r++] = steps_.finish[i];
    }
    starts_.back() = ends_.back();
  }

  void place_outs();
  void place_ins();
  void list();

 private:
  void find_runs();
  void find_copies();
  void list(const std::vector<Move>& moves, Kind kind);

  int32_t last_done_by(double when) const {
    return int32_t(std::upper_bound(ends_.begin(), ends_.end(), when) - ends_.begin()) - 1;
  }

  const Problem& p_;
  const Steps& steps_;
  int64_t count_;
  std::vector<int32_t> run_op_;
  std::vector<int64_t> run_live_;
  std::vector<double> starts_, ends_;  // of the runs; starts_ has the end of the last one too
  std::vector<Move> outs_, ins_;
  std::vector<int64_t> fill_;  // by run + 1: where the next action behind it is listed
};

void Placement::find_runs() {
  for (int64_t i = 0; i < count_; i++) {
    if (steps_.kind[i] != kRun) continue;
    run_op_.push_back(steps_.target[i]);
    run_live_.push_back(steps_.live[i]);
  }
  starts_.resize(run_op_.size() + 1);
  ends_.resize(run_op_.size());
}

void Placement::find_copies() {
  std::vector<int32_t> made(p_.tensors(), -1), last(made), out(made);
  int32_t run = -1;
  for (int64_t i = 0; i < count_; i++) {
    int32_t t = steps_.target[i];
    if (steps_.kind[i] == kRun) {
      run++;
      for (int32_t read : p_.inputs(t)) last[read] = run;
      for (int32_t output : p_.outputs(t)) made[output] = last[output] = run;
    } else if (steps_.kind[i] == kOut) {
      outs_.push_back({t, made[t], run + 1, 0});
      out[t] = made[t];
    } else {
      ins_.push_back({t, std::max(last[t], out[t]), run + 1, 0});
      made[t] = last[t] = run + 1;
    }
  }
}

// A copy out starts no sooner than the run is done behind which it is listed.
void Placement::place_outs() {
  std::vector<int32_t> order(outs_.size());
  for (size_t i = 0; i < order.size(); i++) order[i] = int32_t(i);
  std::stable_sort(order.begin(), order.end(),
                   [&](int32_t a, int32_t b) { return outs_[a].ready < outs_[b].ready; });
  using Due = std::pair<int32_t, int32_t>;  // when, and which
  std::priority_queue<Due, std::vector<Due>, std::greater<>> waiting;
  double free = 0;
  size_t at = 0;
  while (at < order.size() || !waiting.empty()) {
    if (waiting.empty()) free = std::max(free, ends_[outs_[order[at]].ready]);
    for (; at < order.size() && ends_[outs_[order[at]].ready] <= free; at++)
      waiting.emplace(outs_[order[at]].due, order[at]);
    Move& move = outs_[waiting.top().second];
    waiting.pop();
    move.slot = std::min(std::max(last_done_by(free), move.ready), move.due - 1);
    free += p_.out_us[move.tensor];
  }
}

void Placement::place_ins() {
  std::vector<int64_t> live(run_live_);
  double limit = kNever;
  for (auto move = ins_.rbegin(); move != ins_.rend(); ++move) {
    int64_t size = p_.size[move->tensor];
    double begin = std::min(starts_[move->due], limit) - p_.in_us[move->tensor];
    int32_t slot = std::min(std::max(last_done_by(begin), move->ready), move->due - 1);
    int32_t r = move->due - 1;
    for (; r > slot && live[r] + size <= p_.capacity; r--) live[r] += size;
    move->slot = r;
    limit = begin;
  }
}

// Write runs with the copies behind the run of their slot, out before in, else as they were.
void Placement::list() {
  fill_.assign(run_op_.size() + 2, 0);
  for (const Move& move : outs_) fill_[move.slot + 2]++;
  for (const Move& move : ins_) fill_[move.slot + 2]++;
  for (size_t r = 1; r < fill_.size(); r++) fill_[r] += fill_[r - 1];
  for (size_t r = 0; r < run_op_.size(); r++) {
    int64_t i = fill_[r + 1] + int64_t(r);
    steps_.kind[i] = kRun;
    steps_.target[i] = run_op_[r];
  }
  list(outs_, kOut);
  list(ins_, kIn);
}

void Placement::list(const std::vector<Move>& moves, Kind kind) {
  for (const Move& move : moves) {
    int64_t i = fill_[move.slot + 1]++ + move.slot + 1;
    steps_.kind[i] = kind;
    steps_.target[i] = move.tensor;
  }
}

}  // namespace

Replay place_and_time(const Problem& problem, const Steps& steps, Replayer& replayer, Replay replay,
                      int64_t count, int64_t rounds) {
  Placement placement(problem, steps, count);
  if (!placement.has_copies()) return replay;
  int64_t limit = std::max(problem.capacity, replay.peak_bytes);
  double best = rounds > 1 ? replayer.overlapped(count) : kNever;
  std::vector<uint8_t> kind(steps.kind.begin(), steps.kind.begin() + count);
  std::vector<int32_t> target(steps.target.begin(), steps.target.begin() + count);
  placement.reckon();
  for (int64_t round = 0; round < rounds; round++) {
    placement.place_outs();
    placement.place_ins();
    placement.list();
    replay = replayer.run(count);
    if (replay.peak_bytes > limit) break;
    replay.time_us = replayer.overlapped(count);
    if (rounds == 1) return replay;
    if (replay.time_us < best) {
      best = replay.time_us;
      std::copy_n(steps.kind.begin(), count, kind.begin());
      std::copy_n(steps.target.begin(), count, target.begin());
    }
    placement.read_times();
  }
  std::copy(kind.begin(), kind.end(), steps.kind.begin());
  std::copy(target.begin(), target.end(), steps.target.begin());
  replay = replayer.run(count);
  replay.time_us = replayer.overlapped(count);
  return replay;
}

}  // namespace planner::search

#include "replayer.h"

#include <algorithm>
#include <functional>

namespace planner::search {

Replayer::Replayer(const Problem& problem, const Steps& steps)
    : p_(problem),
      steps_(steps),
      newest_(problem.tensors()),
      ran_(problem.ops()),
      at_host_(problem.tensors()) {}

Replay Replayer::run(int64_t count) {
  std::fill(ran_.begin(), ran_.end(), 0);
  std::fill(steps_.live.begin(), steps_.live.begin() + count + 1, 0);
  copies_.clear();
  double time_us = 0;
  for (int32_t step = 0; step < count; step++) {
    int32_t target = steps_.target[step];
    if (steps_.kind[step] == kRun) {
      replay_run(step, target);
      time_us += p_.duration[target];
    } else if (steps_.kind[step] == kOut) {
      Copy& copy = copies_[newest_[target]];
      copy.end = step + 1;
      copy.frees = 0;
      time_us += p_.out_us[target];
    } else {
      make(step, target, false);
      time_us += p_.in_us[target];
    }
  }
  return summed(count, time_us);
}

void Replayer::replay_run(int32_t step, int32_t op) {
  for (int32_t t : p_.inputs(op)) {
    Copy& copy = copies_[newest_[t]];
    copy.end = step + 1;
    copy.frees = 0;
  }
  write_in_place(step, op);
  bool is_first = !ran_[op];
  ran_[op] = 1;
  for (int32_t t : p_.outputs(op)) make(step, t, is_first && p_.to_end[t]);
  steps_.live[step] += p_.workspace[op];
  steps_.live[step + 1] -= p_.workspace[op];
}

// Outputs that take the place of an input: the first of those that may.
void Replayer::write_in_place(int32_t step, int32_t op) {
  for (int64_t i = p_.pair_at[op]; i < p_.pair_at[op + 1]; i++) {
    Copy& copy = copies_[newest_[p_.pair_source[i]]];
    bool is_taken = false;
    for (int64_t j = p_.pair_at[op]; j < i; j++) {
      bool is_same = p_.pair_target[j] == p_.pair_target[i];
      is_taken |= is_same && copies_[newest_[p_.pair_source[j]]].frees;
    }
    if (copy.birth < step && !copy.to_end && !is_taken) copy.frees = 1;
  }
}

void Replayer::make(int32_t step, int32_t t, bool to_end) {
  newest_[t] = int32_t(copies_.size());
  copies_.push_back({t, step, step + 1, 0, to_end});
}

Replay Replayer::summed(int64_t count, double time_us) {
  int64_t* live = steps_.live.data;
  for (Copy& copy : copies_) {
    if (copy.to_end) copy.end = int32_t(count);
    else if (copy.frees) copy.end--;
    live[copy.birth] += p_.size[copy.tensor];
    live[copy.end] -= p_.size[copy.tensor];
  }
  int64_t peak = 0, now = p_.fixed;
  for (int64_t step = 0; step < count; step++) {
    now += live[step];
    live[step] = now;
    peak = std::max(peak, now);
  }
  return {peak, time_us, int64_t(copies_.size())};
}

double Replayer::overlapped(int64_t count) {
  now_ = free_out_ = free_in_ = 0;
  used_ = p_.fixed;
  made_ = 0;
  times_.resize(copies_.size());
  releases_.clear();
  double last = 0;
  for (int64_t step = 0; step < count; step++) {
    int32_t target = steps_.target[step];
    uint8_t kind = steps_.kind[step];
    double done = kind == kRun   ? run_at(step, target)
                  : kind == kOut ? copy_out_at(step, target)
                                 : copy_in_at(step, target);
    steps_.finish[step] = done;
    last = std::max(last, done);
  }
  return last;
}

double Replayer::run_at(int64_t step, int32_t op) {
  int64_t need = p_.workspace[op];
  for (int32_t t : p_.inputs(op)) {
    int32_t c = newest_[t];
    now_ = std::max(now_, times_[c].made);
    if (copies_[c].frees && copies_[c].end == step) {
      now_ = std::max(now_, times_[c].read_until);
      need -= p_.size[t];
    }
  }
  for (int32_t t : p_.outputs(op)) need += p_.size[t];
  wait_for(need);
  steps_.start[step] = now_;
  double done = now_ + p_.duration[op];
  now_ = done;
  if (p_.workspace[op]) release(done, p_.workspace[op]);
  for (int32_t t : p_.inputs(op)) read_to(step, t, done);
  for (int32_t t : p_.outputs(op)) make_at(step, t, done);
  return done;
}

double Replayer::copy_out_at(int64_t step, int32_t t) {
  now_ = std::max(now_, times_[newest_[t]].made);
  steps_.start[step] = std::max(now_, free_out_);
  double done = steps_.start[step] + p_.out_us[t];
  free_out_ = at_host_[t] = done;
  read_to(step, t, done);
  return done;
}

double Replayer::copy_in_at(int64_t step, int32_t t) {
  now_ = std::max(now_, at_host_[t]);
  wait_for(p_.size[t]);
  steps_.start[step] = std::max(now_, free_in_);
  double done = steps_.start[step] + p_.in_us[t];
  free_in_ = done;
  make_at(step, t, done);
  return done;
}

// A copy of a tensor is there from `done` on.
void Replayer::make_at(int64_t step, int32_t t, double done) {
  const Copy& copy = copies_[made_];
  newest_[t] = int32_t(made_);
  times_[made_++] = {done, done};
  if (!copy.to_end && !copy.frees && copy.end == step + 1) release(done, p_.size[t]);
}

// The newest copy of a tensor is read until `done`.
void Replayer::read_to(int64_t step, int32_t t, double done) {
  int32_t c = newest_[t];
  times_[c].read_until = std::max(times_[c].read_until, done);
  const Copy& copy = copies_[c];
  if (!copy.to_end && !copy.frees && copy.end == step + 1)
    release(times_[c].read_until, p_.size[t]);
}

// Waits until there is room for so many bytes, which are in use from then on.
void Replayer::wait_for(int64_t need) {
  while (!releases_.empty() &&
         (releases_.front().first <= now_ || used_ + need > p_.capacity)) {
    auto [when, bytes] = releases_.front();
    std::pop_heap(releases_.begin(), releases_.end(), std::greater<>());
    releases_.pop_back();
    now_ = std::max(now_, when);
    used_ -= bytes;
  }
  used_ += need;
}

void Replayer::release(double when, int64_t bytes) {
  releases_.emplace_back(when, bytes);
  std::push_heap(releases_.begin(), releases_.end(), std::greater<>());
}

}  // namespace planner::search

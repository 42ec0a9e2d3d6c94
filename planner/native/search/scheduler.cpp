#include "scheduler.h"

#include <algorithm>

namespace planner::search {

Scheduler::Scheduler(const Problem& problem, const Steps& steps)
    : p_(problem),
      steps_(steps),
      resident_(problem.tensors()),
      on_host_(problem.tensors()),
      pending_(problem.tensors()),
      next_use_(problem.tensors()),
      seen_(problem.tensors()),
      wanted_(problem.tensors()),
      again_(problem.ops()),
      early_head_(problem.ops() + 1),
      early_next_(problem.gap_tensor.size) {}

int64_t Scheduler::run(const Plan& plan) {
  Outcome outcome;
  do {
    outcome = run_through(plan);
  } while (outcome == Outcome::kLost);
  return outcome == Outcome::kDone ? count_ : kOverflow;
}

Scheduler::Outcome Scheduler::run_through(const Plan& plan) {
  restart(plan);
  for (int32_t op = 0; op < p_.ops(); op++) {
    tick_++;
    find_missing(op);
    if (!missing_.empty()) {
      Outcome outcome = bring_back(plan);
      if (outcome != Outcome::kDone) return outcome;
    }
    int64_t events = p_.outs_at[op + 1] - p_.outs_at[op] + p_.ins_at[op + 1] - p_.ins_at[op];
    if (!has_room(events)) return Outcome::kOverflow;
    run_base(plan, op);
  }
  return Outcome::kDone;
}

void Scheduler::restart(const Plan& plan) {
  count_ = 0;
  std::fill(resident_.begin(), resident_.end(), 0);
  std::fill(on_host_.begin(), on_host_.end(), 0);
  std::fill(pending_.begin(), pending_.end(), 0);
  std::fill(next_use_.begin(), next_use_.end(), 0);
  any_early_ = false;
  for (int64_t gap = 0; gap < plan.early.size; gap++) {
    int32_t op = plan.early[gap];
    if (op < 0) continue;
    if (!any_early_) std::fill(early_head_.begin(), early_head_.end(), -1);
    any_early_ = true;
    early_next_[gap] = early_head_[op];
    early_head_[op] = int32_t(gap);
  }
}

void Scheduler::find_missing(int64_t op) {
  missing_.clear();
  for (int32_t t : p_.inputs(op))
    if (!resident_[t]) need(t);
  if (!any_early_) return;
  for (int64_t gap = early_head_[op]; gap >= 0; gap = early_next_[gap]) {
    int32_t t = p_.gap_tensor[gap];
    bool is_open = p_.producer[t] < op && next_use_[t] == gap - p_.gap_at[t];
    if (is_open && !resident_[t] && seen_[t] != tick_) need(t);
  }
}

void Scheduler::need(int32_t t) {
  seen_[t] = wanted_[t] = tick_;
  missing_.push_back(t);
}

Scheduler::Outcome Scheduler::bring_back(const Plan& plan) {
  if (!has_room(int64_t(missing_.size()))) return Outcome::kOverflow;  // all may be copied in
  if (!find_reruns(plan)) return Outcome::kLost;
  if (!run_again()) return Outcome::kOverflow;
  for (int32_t t : missing_)
    if (pending_[t]) copy_in(t);
  let_go_again(plan);
  return Outcome::kDone;
}

// What must run again for what is missing, and what is copied in for it; false where some of it is
// lost, and kept on from now.
bool Scheduler::find_reruns(const Plan& plan) {
  stack_ = missing_;
  reruns_.clear();
  bool is_lost = false;
  while (!stack_.empty()) {
    int32_t t = stack_.back(), m = p_.producer[t];
    stack_.pop_back();
    bool is_swap = plan.choice[p_.gap_at[t] + next_use_[t]] == kSwap;
    if (on_host_[t] && (is_swap || !p_.recomputable[m])) {
      pending_[t] = 1;
    } else if (!p_.recomputable[m]) {
      keep_on(plan, t);
      is_lost = true;
    } else if (again_[m] != tick_) {
      again_[m] = tick_;
      reruns_.push_back(m);
      for (int32_t u : p_.inputs(m)) {
        if (resident_[u] || seen_[u] == tick_) continue;
        seen_[u] = tick_;
        stack_.push_back(u);
      }
    }
  }
  return !is_lost;
}

void Scheduler::keep_on(const Plan& plan, int32_t t) {
  plan.choice[p_.last_gap(t)] = kDrop;  // behind the last use the other way around: kept
  for (int64_t gap = p_.gap_at[t]; gap < p_.last_gap(t); gap++)
    if (plan.choice[gap] == kDrop) plan.choice[gap] = kKeep;
}

bool Scheduler::run_again() {
  std::sort(reruns_.begin(), reruns_.end());
  auto missing = int64_t(missing_.size());
  for (int32_t m : reruns_) {
    if (!has_room(p_.ins_at[m + 1] - p_.ins_at[m] + missing)) return false;
    for (int32_t t : p_.inputs(m))
      if (pending_[t]) copy_in(t);
    add(kRun, m);
    for (int32_t t : p_.outputs(m)) resident_[t] = 1;
  }
  return true;
}

void Scheduler::copy_in(int32_t t) {
  add(kIn, t);
  resident_[t] = 1;
  pending_[t] = 0;
}

// Whether what was brought back stays: to its next base use, unless released.
void Scheduler::let_go_again(const Plan& plan) {
  for (int32_t m : reruns_) {
    for (int32_t t : p_.inputs(m))
      if (seen_[t] == tick_) settle(plan, t, wanted_[t] != tick_);
    for (int32_t t : p_.outputs(m)) settle(plan, t, wanted_[t] != tick_);
  }
}

void Scheduler::settle(const Plan& plan, int32_t t, bool is_for_another) {
  if (p_.to_end[t]) return;
  int64_t gap = p_.gap_at[t] + next_use_[t];
  if (gap == p_.last_gap(t)) resident_[t] = plan.choice[gap] != kKeep;
  else if (is_for_another && plan.released[gap]) resident_[t] = 0;
}

void Scheduler::run_base(const Plan& plan, int32_t op) {
  add(kRun, op);
  for (int32_t t : p_.outputs(op)) {
    resident_[t] = 1;
    pass_event(plan, t);
  }
  for (int32_t t : p_.inputs(op)) {
    next_use_[t]++;
    pass_event(plan, t);
  }
}

// A tensor was made or used: what its next gap decides is done.
void Scheduler::pass_event(const Plan& plan, int32_t t) {
  if (p_.to_end[t]) return;
  int64_t gap = p_.gap_at[t] + next_use_[t];
  uint8_t choice = plan.choice[gap];
  if (gap == p_.last_gap(t)) {
    resident_[t] = choice != kKeep;
    return;
  }
  bool cannot_return = !p_.recomputable[p_.producer[t]] && !on_host_[t];
  if (choice == kKeep || (choice == kDrop && cannot_return)) return;
  if (choice == kSwap && !on_host_[t]) {
    on_host_[t] = 1;
    add(kOut, t);
  }
  resident_[t] = 0;
}

}  // namespace planner::search

#include "moves.h"

#include <algorithm>
#include <cmath>

namespace planner::search {
namespace {

constexpr double kSmall = 1e-9;
constexpr int64_t kNear = 24;  // so far away in the list of gaps are neighbours, at most

void copy(const Plan& from, const Plan& to) {
  std::copy(from.choice.begin(), from.choice.end(), to.choice.begin());
  std::copy(from.released.begin(), from.released.end(), to.released.begin());
  std::copy(from.early.begin(), from.early.end(), to.early.begin());
}

}  // namespace

Mover::Mover(const Problem& problem, const Steps& steps, const Plan& plan)
    : p_(problem),
      steps_(steps),
      plan_(plan),
      choice_(plan.choice.size),
      released_(plan.choice.size),
      early_(plan.choice.size),
      tried_{{choice_.data(), plan.choice.size},
             {released_.data(), plan.choice.size},
             {early_.data(), plan.choice.size}},
      scheduler_(problem, steps),
      replayer_(problem, steps) {}

Mover::Value Mover::evaluate(const Plan& plan) {
  int64_t count = scheduler_.run(plan);
  if (count < 0) return {kBroken, kNever};
  Replay replay = replayer_.run(count);
  if (p_.overlap && replay.peak_bytes <= p_.capacity)
    replay = place_and_time(p_, steps_, replayer_, replay, count, 1);
  return {replay.peak_bytes, replay.time_us};
}

double Mover::change(const Change& change, double time_us) {
  auto [gaps, choice, batch] = change;
  if (std::isnan(time_us)) time_us = evaluate(plan_).time_us;
  for (int64_t start = 0; start < gaps.size; start += batch) {
    copy(plan_, tried_);
    Array<const int64_t> some{gaps.data + start, std::min(batch, gaps.size - start)};
    if (!decide(some, uint8_t(choice))) continue;
    Value value = evaluate(tried_);
    double enough = choice == kKeep ? time_us : time_us * (1 - kSmall);
    if (value.peak_bytes > p_.capacity || value.time_us > enough) continue;
    copy(tried_, plan_);
    time_us = value.time_us;
  }
  return time_us;
}

// Decides `choice` where that may be; whether anything changed.
bool Mover::decide(Array<const int64_t> gaps, uint8_t choice) {
  bool is_changed = false;
  for (int64_t gap : gaps) {
    int32_t t = p_.gap_tensor[gap];
    bool is_last = gap == p_.last_gap(t);
    if (tried_.choice[gap] == choice) continue;
    if (choice == kSwap && (is_last || !p_.swappable[t])) continue;
    if (choice == kDrop && !is_last && !p_.recomputable[p_.producer[t]]) continue;
    tried_.choice[gap] = choice;
    is_changed = true;
  }
  return is_changed;
}

int64_t Mover::anneal(const Plan& best, const Annealing& annealing, Heat& heat) {
  const Random& random = annealing.random;
  int64_t found = 0;
  for (int64_t i = 0; i < annealing.iterations; i++) {
    copy(plan_, tried_);
    propose(annealing.gaps, random);
    Value value = evaluate(tried_);
    if (value.peak_bytes == kBroken) continue;
    int64_t over = std::max<int64_t>(0, value.peak_bytes - p_.capacity);
    double cost_us = value.time_us + heat.price_us_per_byte * double(over);
    bool is_kept = cost_us <= heat.cost_us ||
                   random.uniform() < std::exp((heat.cost_us - cost_us) / heat.temperature_us);
    if (!is_kept) continue;
    copy(tried_, plan_);
    heat.cost_us = cost_us;
    if (over || value.time_us >= heat.best_us * (1 - kSmall)) continue;
    copy(plan_, best);
    heat.best_us = value.time_us;
    found++;
  }
  return found;
}

// Half the changes start from a decision that was taken; most are exchanges with a neighbour.
void Mover::propose(Array<const int64_t> gaps, const Random& random) {
  int64_t at = random.below(gaps.size);
  if (random.uniform() < 0.5)
    for (int i = 0; i < 16 && !tried_.choice[gaps[at]]; i++) at = random.below(gaps.size);
  flip(gaps[at], random);
  double r = random.uniform();
  if (r >= 0.6) return;
  int64_t near = at + random.below(2 * kNear + 1) - kNear;
  flip(gaps[std::clamp<int64_t>(near, 0, gaps.size - 1)], random);
  if (r < 0.2) flip(gaps[random.below(gaps.size)], random);
}

// Changes the decision at a gap.
void Mover::flip(int64_t gap, const Random& random) {
  int32_t t = p_.gap_tensor[gap];
  bool may_drop = p_.recomputable[p_.producer[t]], may_swap = p_.swappable[t];
  double r = random.uniform();
  uint8_t& choice = tried_.choice[gap];
  if (gap == p_.last_gap(t)) {
    choice = choice ? kKeep : kDrop;
  } else if (choice != kKeep) {
    flip_decided(gap, r, random);
  } else if (may_drop && (!may_swap || r < 0.5)) {
    choice = kDrop;
  } else if (may_swap) {
    choice = kSwap;
  }
}

void Mover::flip_decided(int64_t gap, double r, const Random& random) {
  int32_t t = p_.gap_tensor[gap];
  bool may_drop = p_.recomputable[p_.producer[t]], may_swap = p_.swappable[t];
  uint8_t& choice = tried_.choice[gap];
  if (r < 0.6) {
    choice = kKeep;
    tried_.early[gap] = -1;
  } else if (r < 0.75 && may_drop && may_swap) {
    choice = choice == kSwap ? kDrop : kSwap;
  } else if (r < 0.85) {
    tried_.released[gap] = 1 - tried_.released[gap];
  } else if (r < 0.9 || choice == kSwap) {
    tried_.early[gap] = -1;
  } else {
    int64_t g = gap - p_.gap_at[t], use = p_.use_at[t] + g;
    int32_t opened = g ? p_.uses[use - 1] : p_.producer[t];
    tried_.early[gap] = opened + 1 + int32_t(random.below(p_.uses[use] - opened));
  }
}

}  // namespace planner::search

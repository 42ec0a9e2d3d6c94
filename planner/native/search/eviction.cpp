#include "eviction.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <utility>

#include "../export.h"

namespace planner::search {

namespace {

constexpr double kBlur = 1.2;  // random factors of scores are from e^-1.2 to e^1.2

}  // namespace

Eviction::Eviction(const Problem& problem, const Evict& asked)
    : p_(problem),
      asked_(asked),
      room_(asked.capacity - problem.fixed),
      last_(problem.tensors(), -1),
      need_(problem.ops()),
      source_(problem.pair_source.size, -1),
      there_(problem.tensors()),
      may_run_again_(problem.ops()),
      place_(problem.tensors()),
      pinned_(problem.tensors()),
      waits_(problem.tensors()),
      depth_(problem.tensors()),
      next_use_(problem.tensors()),
      cost_(problem.tensors()),
      seen_(std::max(problem.tensors(), problem.ops())) {
  for (double us : p_.duration) whole_us_ += us;
  for (int64_t op = 0; op < p_.ops(); op++) {
    // a second run would make second copies of graph outputs, for all later readers
    bool makes_output = false;
    for (int32_t t : p_.outputs(op)) makes_output |= p_.to_end[t] != 0;
    may_run_again_[op] = p_.recomputable[op] && !makes_output;
  }
  find_last_needs();
  find_needs();
  find_overwrites();
}

void Eviction::find_last_needs() {
  for (int32_t op = int32_t(p_.ops()) - 1; op >= 0; op--) {
    int32_t latest = op;
    if (may_run_again_[op])
      for (int32_t t : p_.outputs(op)) latest = std::max(latest, last_[t]);
    for (int32_t t : p_.inputs(op)) last_[t] = std::max(last_[t], latest);
  }
}

// As if the ancestors of an operation were a tree.
void Eviction::find_needs() {
  std::vector<int32_t> inputs;
  for (int64_t op = 0; op < p_.ops(); op++) {
    int64_t most = p_.workspace[op], held = 0;
    inputs.assign(p_.inputs(op).begin(), p_.inputs(op).end());
    for (int32_t t : inputs) most += p_.size[t];
    for (int32_t t : p_.outputs(op)) most += p_.size[t];
    std::stable_sort(inputs.begin(), inputs.end(), [&](int32_t a, int32_t b) {
      return p_.size[a] - need_[p_.producer[a]] < p_.size[b] - need_[p_.producer[b]];
    });
    for (int32_t t : inputs) {
      most = std::max(most, held + need_[p_.producer[t]]);
      held += p_.size[t];
    }
    need_[op] = most;
  }
}

// An output is written over one input: the first that may be.
void Eviction::find_overwrites() {
  for (int64_t op = 0; op < p_.ops(); op++)
    for (int64_t pair = p_.pair_at[op]; pair < p_.pair_at[op + 1]; pair++) {
      bool is_first = !p_.to_end[p_.pair_source[pair]];
      for (int64_t other = p_.pair_at[op]; other < pair && is_first; other++)
        is_first = source_[other] < 0 || p_.pair_target[other] != p_.pair_target[pair];
      if (is_first) source_[pair] = p_.pair_source[pair];
    }
}

int64_t Eviction::run() {
  for (at_ = 0; at_ < p_.ops(); at_++) {
    if (!run_base(at_)) return kStuck;
    for (int32_t t : p_.inputs(at_)) next_use_[t]++;
    forget(at_);
  }
  return done_;
}

bool Eviction::run_base(int32_t base) {
  waiting_.clear();
  wait(base);
  while (!waiting_.empty()) {
    int32_t op = waiting_.back().op;
    if (op != base && !is_awaited(op)) {
      leave(waiting_.back());
      waiting_.pop_back();
      continue;
    }
    missing_.clear();
    for (int32_t t : p_.inputs(op))
      if (!there_[t]) missing_.push_back(t);
    if (done_ >= asked_.runs.size || work_ > asked_.most_work) return false;
    if (!missing_.empty()) {
      if (!make_missing()) return false;
      continue;
    }
    if (!make_room(op)) return false;
    asked_.runs[done_++] = op;
    work_++;
    Waiting it = std::move(waiting_.back());
    waiting_.pop_back();
    ran(it);
  }
  return true;
}

// The one that takes most memory waits on top; or all of them do, the first in base order on top.
bool Eviction::make_missing() {
  if (asked_.in_order) return make_in_order();
  auto weight = [&](int32_t t) { return need_[p_.producer[t]] - p_.size[t]; };
  int32_t heaviest = *std::max_element(
      missing_.begin(), missing_.end(),
      [&](int32_t a, int32_t b) { return weight(a) < weight(b); });
  if (!may_return(heaviest)) return false;
  wait(p_.producer[heaviest]);
  return true;
}

bool Eviction::make_in_order() {
  std::vector<int32_t> found;
  stack_.clear();
  for (int32_t t : missing_) stack_.push_back(p_.producer[t]);
  tick_++;
  while (!stack_.empty()) {
    int32_t op = stack_.back();
    stack_.pop_back();
    if (seen_[op] == tick_) continue;
    if (!may_run_again_[op]) return false;
    seen_[op] = tick_;
    found.push_back(op);
    for (int32_t t : p_.inputs(op))
      if (!there_[t]) stack_.push_back(p_.producer[t]);
  }
  std::sort(found.begin(), found.end(), std::greater<>());
  work_ += int64_t(found.size());
  for (int32_t op : found) wait(op);
  return true;
}

void Eviction::wait(int32_t op) {
  waiting_.push_back({op, {}});
  for (int32_t t : p_.inputs(op)) {
    waits_[t]++;
    depth_[t] = int32_t(waiting_.size());
  }
}

void Eviction::leave(const Waiting& waiting) {
  for (int32_t t : p_.inputs(waiting.op)) waits_[t]--;
  for (int32_t t : waiting.pins) pinned_[t]--;
}

// Whether some operation waits for a missing output.
bool Eviction::is_awaited(int32_t op) const {
  for (int32_t t : p_.outputs(op))
    if (waits_[t] && !there_[t]) return true;
  return false;
}

// Its outputs are there, and stay for the operation that waits for them.
void Eviction::ran(const Waiting& waiting) {
  leave(waiting);
  for (int32_t t : p_.outputs(waiting.op)) {
    bool is_useless = last_[t] < at_ && !p_.to_end[t];
    if (!there_[t] && !is_useless) put(t);
  }
  if (waiting_.empty()) return;
  Waiting& above = waiting_.back();
  for (int32_t t : p_.outputs(waiting.op)) {
    if (!is_input(above.op, t)) continue;
    pinned_[t]++;
    above.pins.push_back(t);
  }
}

bool Eviction::is_input(int32_t op, int32_t t) const {
  Array<const int32_t> inputs = p_.inputs(op);
  return std::find(inputs.begin(), inputs.end(), t) != inputs.end();
}

// Drops what no later operation may read.
void Eviction::forget(int32_t op) {
  for (size_t k = resident_.size(); k-- > 0;)
    if (last_[resident_[k]] <= op) drop(resident_[k]);
}

void Eviction::put(int32_t t) {
  there_[t] = 1;
  room_ -= p_.size[t];
  if (p_.to_end[t]) return;
  place_[t] = int32_t(resident_.size());
  resident_.push_back(t);
}

void Eviction::drop(int32_t t) {
  there_[t] = 0;
  room_ += p_.size[t];
  int32_t last = resident_.back();
  resident_[place_[t]] = last;
  place_[last] = place_[t];
  resident_.pop_back();
}

// The bytes that an operation lacks, once its inputs are there.
int64_t Eviction::missing_bytes(int32_t op) const {
  int64_t over = p_.workspace[op] - room_;
  for (int32_t t : p_.outputs(op))
    if (!there_[t]) over += p_.size[t];
  for (int64_t pair = p_.pair_at[op]; pair < p_.pair_at[op + 1]; pair++)
    if (is_overwritten_anyway(op, pair)) over -= p_.size[p_.pair_target[pair]];
  return over;
}

// The input's buffer becomes the output's, since nothing reads the input again.
bool Eviction::is_overwritten_anyway(int32_t op, int64_t pair) const {
  return op == at_ && source_[pair] >= 0 && last_[source_[pair]] <= op;
}

bool Eviction::make_room(int32_t op) {
  int64_t over = missing_bytes(op);
  if (over <= 0) return true;
  score_all(op);
  dropped_.clear();
  drop_those(over, [&](int32_t t) { return may_return(t) && !waits_[t]; });
  drop_for_good(over);
  drop_those(over, [&](int32_t t) { return may_return(t); });
  overwrite(op, over);
  for (size_t k = dropped_.size(); k-- > 0;) {  // what was not in the way after all stays
    int32_t t = dropped_[k];
    if (over + p_.size[t] > 0) continue;
    over += p_.size[t];
    put(t);
  }
  return over <= 0;
}

void Eviction::score_all(int32_t op) {
  scored_.clear();
  for (int32_t t : resident_)
    if (p_.size[t] && !pinned_[t] && !is_input(op, t) && p_.producer[t] != op)
      scored_.push_back(waits_[t] ? Scored{depth_[t], 0.0, t} : Scored{0, score(t), t});
  work_ += int64_t(resident_.size());
  std::sort(scored_.begin(), scored_.end(), [](const Scored& a, const Scored& b) {
    if (a.depth != b.depth) return a.depth < b.depth;
    return a.score != b.score ? a.score < b.score : a.tensor < b.tensor;
  });
}

template <class May>
void Eviction::drop_those(int64_t& over, May may) {
  for (const Scored& scored : scored_) {
    int32_t t = scored.tensor;
    if (over <= 0) return;
    if (!there_[t] || !may(t)) continue;
    over -= p_.size[t];
    dropped_.push_back(t);
    cost_[t] = cost_again(t);
    drop(t);
  }
}

void Eviction::drop_for_good(int64_t& over) {
  for (const Scored& scored : scored_) {
    int32_t t = scored.tensor;
    if (over <= 0) return;
    if (!there_[t] || !may_be_lost(t, -1)) continue;
    over -= p_.size[t];
    lose(t, -1);
    drop(t);
  }
}

void Eviction::overwrite(int32_t op, int64_t& over) {
  for (int64_t pair = p_.pair_at[op]; pair < p_.pair_at[op + 1]; pair++) {
    int32_t t = source_[pair];
    bool is_free = t >= 0 && there_[t] && !pinned_[t] && !is_overwritten_anyway(op, pair);
    if (over <= 0 || !is_free) continue;
    if (!may_return(t)) {
      if (!may_be_lost(t, op)) continue;
      lose(t, op);
    }
    over -= p_.size[p_.pair_target[pair]];
    cost_[t] = cost_again(t);
    drop(t);
  }
}

// Whether a tensor may go for good: no base operation reads it, nor needs what only it could bring
// back. `by` is the operation that is about to write over it; -1: none.
bool Eviction::may_be_lost(int32_t t, int32_t by) {
  if (!no_more_use(t, by)) return false;
  tick_++;
  stack_.assign(1, t);
  while (!stack_.empty()) {
    int32_t lost = stack_.back();
    stack_.pop_back();
    for (int32_t op : p_.readers(lost)) {
      if (!may_run_again_[op] || (lost == t && op == by)) continue;
      for (int32_t made : p_.outputs(op)) {
        if (there_[made] || last_[made] < at_ || seen_[made] == tick_) continue;
        if (!no_more_use(made, -1)) return false;
        seen_[made] = tick_;
        work_++;
        stack_.push_back(made);
      }
    }
  }
  return true;
}

bool Eviction::no_more_use(int32_t t, int32_t by) const {
  Array<const int32_t> readers = p_.readers(t);
  int32_t last_use = readers.size ? readers[readers.size - 1] : -1;
  return last_use < at_ + (by == at_) && waits_[t] <= (by >= 0);
}

// Bars all readers of the tensor from running again, and all that would need those.
void Eviction::lose(int32_t t, int32_t by) {
  stack_.assign(1, t);
  while (!stack_.empty()) {
    int32_t lost = stack_.back();
    stack_.pop_back();
    for (int32_t op : p_.readers(lost)) {
      if (!may_run_again_[op]) continue;
      may_run_again_[op] = 0;
      if (op == by) continue;
      for (int32_t made : p_.outputs(op))
        if (!there_[made]) stack_.push_back(made);
    }
  }
}

// An estimate: missing inputs count with their last one.
double Eviction::cost_again(int32_t t) const {
  int32_t op = p_.producer[t];
  double cost = p_.duration[op];
  for (int32_t u : p_.inputs(op))
    if (!there_[u]) cost += cost_[u];
  return std::min(cost, whole_us_);
}

double Eviction::score(int32_t t) {
  Array<const int32_t> readers = p_.readers(t);
  int32_t use = next_use_[t];
  double distance = use < readers.size ? readers[use] - at_ + 1 : 4.0 * double(p_.ops());
  double weight = cost_again(t) + 1e-9;
  if (asked_.cost_halves == 1) weight = std::sqrt(weight);
  if (asked_.cost_halves == 0) weight = 1;
  if (asked_.random.next) weight *= std::exp(kBlur * (2 * asked_.random.uniform() - 1));
  return weight / (double(p_.size[t]) * (asked_.distance_power ? distance : 1.0));
}

}  // namespace planner::search

using namespace planner::search;

// See eviction.h; `work` is set to what was done.
PLANNER_EXPORT int64_t planner_search_evict(const Problem* problem, const Evict* asked,
                                            int64_t* work) {
  return planner::unless_out_of_memory([&] {
    Eviction eviction(*problem, *asked);
    int64_t count = eviction.run();
    *work = eviction.work();
    return count;
  });
}

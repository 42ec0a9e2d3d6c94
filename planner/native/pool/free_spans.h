// Which of the numbers 0 .. n are free, as spans: for pages of a pool, and for pieces of a page.
#pragma once

#include <algorithm>
#include <cstddef>
#include <map>
#include <set>
#include <utility>

namespace planner {

struct Span {  // [start, start + count)
  size_t start = 0, count = 0;
  bool operator<(const Span& other) const {
    return std::pair(start, count) < std::pair(other.start, other.count);
  }
};

class FreeSpans {
 public:
  explicit FreeSpans(size_t count) { put({0, count}); }

  size_t free() const { return free_; }
  size_t longest() const { return by_count_.empty() ? 0 : by_count_.rbegin()->first; }

  // The head of the shortest span that is long enough; a count of 0 where there is none.
  Span best(size_t count) {
    auto at = by_count_.lower_bound({count, 0});
    if (at == by_count_.end()) return {};
    return take({at->second, at->first}, count);
  }
  // The head of the longest span, `count` at the most.
  Span longest(size_t count) {
    if (by_count_.empty()) return {};
    auto [length, start] = *by_count_.rbegin();
    return take({start, length}, std::min(count, length));
  }
  void put(Span span) {
    if (!span.count) return;
    free_ += span.count;
    auto next = by_start_.lower_bound(span.start);
    if (next != by_start_.end() && next->first == span.start + span.count) {
      span.count += next->second;
      next = forget(next);
    }
    if (next != by_start_.begin()) {
      auto before = std::prev(next);
      if (before->first + before->second == span.start) {
        span = {before->first, before->second + span.count};
        forget(before);
      }
    }
    by_start_[span.start] = span.count;
    by_count_.insert({span.count, span.start});
  }

 private:
  using ByStart = std::map<size_t, size_t>;
  ByStart::iterator forget(ByStart::iterator at) {
    by_count_.erase({at->second, at->first});
    return by_start_.erase(at);
  }
  Span take(Span whole, size_t count) {
    forget(by_start_.find(whole.start));
    free_ -= whole.count;
    put({whole.start + count, whole.count - count});
    return {whole.start, count};
  }
  ByStart by_start_;
  std::set<std::pair<size_t, size_t>> by_count_;  // (count, start)
  size_t free_ = 0;
};

}  // namespace planner

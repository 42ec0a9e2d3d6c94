#include "pool/pool.h"

#include <algorithm>
#include <cstdlib>
#include <tuple>

#include "common.h"

namespace planner {
namespace {

constexpr size_t kMostAliasSpans =
    16384;  // a quarter of the mappings that Linux lets a process have

size_t ceil_divide(size_t a, size_t b) { return a / b + (a % b != 0); }

size_t page_count(const std::vector<Span>& spans) {
  size_t sum = 0;
  for (Span span : spans) sum += span.count;
  return sum;
}

}  // namespace

Pool::Pool(std::unique_ptr<PageMemory> memory)
    : memory_(std::move(memory)),
      page_(memory_->page_bytes()),
      piece_(memory_->piece_bytes()),
      free_(memory_->pages()) {
  facts_.page_bytes = int64_t(page_);
  facts_.pool_bytes = int64_t(page_ * memory_->pages());
}

Pool::~Pool() { drop_aliases(); }

void* Pool::get(size_t bytes, std::string& why, size_t spill_bytes) {
  std::lock_guard<std::mutex> lock(mutex_);
  memory_->take();
  Buffer buffer;
  char* at = bytes < page_ ? small(bytes) : large(ceil_divide(bytes, page_), buffer);
  if (!at) {
    facts_.refusals++;
    bool may = facts_.spilled_bytes + bytes <= spill_bytes;
    void* outside = may ? spilled(bytes) : nullptr;
    if (!outside) why = refusal(bytes);
    return outside;
  }
  buffer.bytes = bytes;
  buffers_[at] = std::move(buffer);
  facts_.asked_bytes += bytes;
  facts_.asked_most_bytes = std::max(facts_.asked_most_bytes, facts_.asked_bytes);
  return at;
}

void* Pool::spilled(size_t bytes) {
  void* at = nullptr;
  if (posix_memalign(&at, piece_, bytes)) return nullptr;
  spilled_[at] = bytes;
  facts_.spilled_bytes += bytes;
  facts_.spilled_most_bytes = std::max(facts_.spilled_most_bytes, facts_.spilled_bytes);
  return at;
}

void Pool::give_back() {
  std::lock_guard<std::mutex> lock(mutex_);
  if (!buffers_.empty()) return;
  drop_aliases();
  memory_->settle();
  memory_->give_back();
}

void Pool::put(void* at) {
  std::lock_guard<std::mutex> lock(mutex_);
  auto found = buffers_.find(static_cast<char*>(at));
  if (found == buffers_.end()) {
    auto spilled = spilled_.find(at);
    if (spilled == spilled_.end()) return;
    facts_.spilled_bytes -= spilled->second;
    std::free(at);
    spilled_.erase(spilled);
    return;
  }
  facts_.asked_bytes -= found->second.bytes;
  if (found->second.pages.empty()) put_small(found->first);
  else put_large(found->first, found->second);
  buffers_.erase(found);
}

char* Pool::large(size_t count, Buffer& buffer) {
  if (count > free_.free()) return nullptr;
  char* at = nullptr;
  if (Span span = free_.best(count); span.count) {
    buffer.pages = {span};
    at = memory_->base() + span.start * page_;
  } else {
    for (size_t left = count; left; left -= buffer.pages.back().count)
      buffer.pages.push_back(free_.longest(left));
    buffer.is_alias = true;
    at = aliased(buffer.pages, count);
    if (!at) {
      for (Span span : buffer.pages) free_.put(span);
      return nullptr;
    }
  }
  facts_.pages += count;
  facts_.pages_most = std::max(facts_.pages_most, facts_.pages);
  return at;
}

char* Pool::aliased(const std::vector<Span>& spans, size_t count) {
  auto known = aliases_.find(spans);
  if (known == aliases_.end()) {
    if (alias_spans_ + spans.size() > kMostAliasSpans) drop_aliases();
    char* made = memory_->map(spans, count);
    if (!made) {
      drop_aliases();
      made = memory_->map(spans, count);
    }
    if (!made) return nullptr;
    known = aliases_.emplace(spans, made).first;
    alias_spans_ += spans.size();
    facts_.mappings++;
  }
  memory_->enter(known->second, spans, count);
  return known->second;
}

void Pool::put_large(char* at, const Buffer& buffer) {
  size_t count = page_count(buffer.pages);
  if (buffer.is_alias) memory_->leave(at, count);
  for (Span span : buffer.pages) free_.put(span);
  facts_.pages -= count;
}

char* Pool::small(size_t bytes) {
  size_t count = std::max(ceil_divide(bytes, piece_), size_t(1));
  char* at = first_with(count);
  if (!at) {
    Shared fresh{{}, FreeSpans(page_ / piece_), {}, shared_count_++};
    at = large(1, fresh.page);
    if (!at) return nullptr;
    list(at, shared_.emplace(at, std::move(fresh)).first->second, 0);
  }
  Shared& page = shared_.at(at);
  size_t longest = page.free.longest();
  Span span = page.free.best(count);
  page.pieces[span.start] = span.count;
  list(at, page, longest);
  return at + span.start * piece_;
}

void Pool::put_small(char* at) {
  auto page = std::prev(shared_.upper_bound(at));
  auto piece = page->second.pieces.find(size_t(at - page->first) / piece_);
  size_t longest = page->second.free.longest();
  page->second.free.put({piece->first, piece->second});
  page->second.pieces.erase(piece);
  if (!page->second.pieces.empty()) return list(page->first, page->second, longest);
  put_large(page->first, page->second.page);
  by_longest_[longest].erase(page->second.number);
  shared_.erase(page);
}

char* Pool::first_with(size_t count) {
  size_t number = shared_count_;
  char* found = nullptr;
  for (auto pages = by_longest_.lower_bound(count); pages != by_longest_.end(); ++pages) {
    if (pages->second.empty() || pages->second.begin()->first >= number) continue;
    std::tie(number, found) = *pages->second.begin();
  }
  return found;
}

void Pool::list(char* at, const Shared& page, size_t longest_before) {
  by_longest_[longest_before].erase(page.number);
  if (size_t longest = page.free.longest()) by_longest_[longest][page.number] = at;
}

void Pool::drop_aliases() {  // those that no buffer has
  bool settled = false;
  for (auto at = aliases_.begin(); at != aliases_.end();) {
    if (buffers_.count(at->second) || shared_.count(at->second)) {
      ++at;
      continue;
    }
    if (!settled) memory_->settle();
    settled = true;
    memory_->unmap(at->second, page_count(at->first));
    alias_spans_ -= at->first.size();
    at = aliases_.erase(at);
  }
}

std::string Pool::refusal(size_t bytes) const {
  return std::to_string(bytes) + " bytes were asked for; the pool has " +
         std::to_string(facts_.pool_bytes) + ", of which " + std::to_string(facts_.asked_bytes) +
         " are in use (" + std::to_string(free_.free() * page_) + " free, in pages of " +
         std::to_string(page_) + ")";
}

bool Pool::has(const void* at) {
  std::lock_guard<std::mutex> lock(mutex_);
  auto there = const_cast<void*>(at);
  return buffers_.count(static_cast<char*>(there)) || spilled_.count(there);
}

bool Pool::has_pages(const void* at) {
  std::lock_guard<std::mutex> lock(mutex_);
  auto found = buffers_.find(static_cast<char*>(const_cast<void*>(at)));
  return found != buffers_.end() && !found->second.pages.empty();
}

void Pool::settle() {
  std::lock_guard<std::mutex> lock(mutex_);
  memory_->settle();
}

bool Pool::is_empty() {
  std::lock_guard<std::mutex> lock(mutex_);
  return buffers_.empty() && spilled_.empty();
}

PoolFacts Pool::facts() {
  std::lock_guard<std::mutex> lock(mutex_);
  return facts_;
}

void Pool::restart_peaks() {
  std::lock_guard<std::mutex> lock(mutex_);
  facts_.asked_most_bytes = facts_.asked_bytes;
  facts_.pages_most = facts_.pages;
  facts_.spilled_most_bytes = facts_.spilled_bytes;
  facts_.mappings = facts_.refusals = 0;
}

}  // namespace planner

// An allocator of exactly so many bytes, which free memory that lies in pieces does not keep from
// serving.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "pool/page_memory.h"

namespace planner {

struct PoolFacts {  // planner_native_pool() gives them in this order
  int64_t pool_bytes = 0, page_bytes = 0;
  int64_t asked_bytes = 0,
          asked_most_bytes = 0;       // sum of the requests that are in use: now, at the most
  int64_t pages = 0, pages_most = 0;  // taken: now, at the most
  int64_t mappings = 0;               // aliases that were made
  int64_t refusals = 0;
  int64_t spilled_bytes = 0,
          spilled_most_bytes = 0;  // served from elsewhere: now, at the most
};

// A buffer of a page or more takes whole pages: of the shortest span of free ones that is long
// enough, or, where no span is, of any free ones, which are mapped one behind the other at an
// alias. Buffers below a page share pages. An alias is kept: a step that asks as the last one did
// finds each of its aliases made.
class Pool {
 public:
  explicit Pool(std::unique_ptr<PageMemory> memory);
  ~Pool();
  // What does not fit lies outside of the pool, up to `spill_bytes` of it; null where that is too
  // much, and `why` says so.
  void* get(size_t bytes, std::string& why, size_t spill_bytes = 0);
  void put(void* at);
  void give_back();  // all memory, where no buffer is in use; the next request takes it again
  bool has(const void* at);        // whether a buffer in use starts there, spilled or not
  bool has_pages(const void* at);  // whether one does that has its pages to itself
  bool is_empty();
  void settle();  // waits for all work that may use the pages
  PoolFacts facts();
  void restart_peaks();

 private:
  struct Buffer {
    size_t bytes = 0;         // asked for
    std::vector<Span> pages;  // empty: it shares a page
    bool is_alias = false;
  };
  struct Shared {  // a page, cut into pieces
    Buffer page;
    FreeSpans free;
    std::unordered_map<size_t, size_t> pieces;  // by start: how many
    size_t number = 0;                          // in the order in which pages were taken
  };
  char* large(size_t count, Buffer& buffer);
  char* small(size_t bytes);
  void* spilled(size_t bytes);
  char* aliased(const std::vector<Span>& spans, size_t count);
  void put_large(char* at, const Buffer& buffer);
  void put_small(char* at);
  char* first_with(size_t count);  // of the pages that share; null where none has as long a span
  void list(char* at, const Shared& page, size_t longest_before);
  void drop_aliases();
  std::string refusal(size_t bytes) const;

  std::mutex mutex_;
  std::unique_ptr<PageMemory> memory_;
  const size_t page_, piece_;  // bytes
  FreeSpans free_;
  PoolFacts facts_;
  std::unordered_map<char*, Buffer> buffers_;
  std::unordered_map<void*, size_t> spilled_;  // bytes
  std::map<char*, Shared> shared_;
  std::map<size_t, std::map<size_t, char*>> by_longest_;  // these pages, by span and number
  size_t shared_count_ = 0;                               // ever taken
  std::map<std::vector<Span>, char*> aliases_;
  size_t alias_spans_ = 0;  // of all aliases together
};

}  // namespace planner

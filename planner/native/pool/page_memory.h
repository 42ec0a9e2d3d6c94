// Physical pages of a pool, and addresses at which they can be used.
#pragma once

#include <memory>
#include <vector>

#include "pool/free_spans.h"

namespace planner {

// All pages are mapped in their order at `base`. An alias is a second range of addresses
// at which some of them, in any order, are mapped without a gap. A page is used at one address at a
// time.
class PageMemory {
 public:
  virtual ~PageMemory() = default;
  virtual char* base() const = 0;
  virtual size_t page_bytes() const = 0;
  virtual size_t pages() const = 0;
  virtual size_t piece_bytes() const = 0;  // of what shares a page; alignment of every buffer
  virtual char* map(const std::vector<Span>& spans,
                    size_t count) = 0;  // null where it cannot be done
  virtual void unmap(char* at, size_t count) = 0;
  // The pages of `spans` are used at `alias` from now on, or no longer.
  virtual void enter(char* alias, const std::vector<Span>& spans, size_t count) = 0;
  virtual void leave(char* alias, size_t count) = 0;
  // No page and no alias is in use: the system may have the memory until take().
  virtual void give_back() {}
  virtual void take() {}      // at `base` again, which may be elsewhere; throws where there is none
  virtual void settle() = 0;  // waits for all work that may use pages
};

// Throw where there is no such memory.
std::unique_ptr<PageMemory> host_pages(size_t pool_bytes, size_t page_bytes);
std::unique_ptr<PageMemory> device_pages(size_t pool_bytes, size_t page_bytes);

}  // namespace planner

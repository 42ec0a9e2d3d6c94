// Pages of an unnamed file in memory, which can be mapped at several addresses.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "common.h"
#include "pool/page_memory.h"
#include "swap/swaps.h"

namespace planner {
namespace {

int memory_file() {
#ifdef __linux__
  return memfd_create("planner.pool", MFD_CLOEXEC);
#else
  std::string name = "/planner.pool." + std::to_string(getpid());
  int file = shm_open(name.c_str(), O_RDWR | O_CREAT | O_EXCL, 0600);
  shm_unlink(name.c_str());
  return file;
#endif
}

class Host : public PageMemory {
 public:
  Host(size_t pages, size_t page) : pages_(pages), page_(page) { Host::take(); }
  ~Host() override { release(); }
  char* base() const override { return base_; }
  size_t page_bytes() const override { return page_; }
  size_t pages() const override { return pages_; }
  size_t piece_bytes() const override { return 64; }  // as ONNX Runtime's products want it (MLAS)

  char* map(const std::vector<Span>& spans, size_t count) override {
    char* at = reserve(count);
    if (!at) return nullptr;
    char* next = at;
    for (Span span : spans) {
      if (!map_at(next, span)) {
        unmap(at, count);
        return nullptr;
      }
      next += span.count * page_;
    }
    guard(at, count);
    return at;
  }
  void unmap(char* at, size_t count) override { munmap(at, count * page_); }

  // The page tables of the addresses that are not used are emptied, so that the process is not
  // counted as holding a page twice. What is in the pages stays.
  void enter(char*, const std::vector<Span>& spans, size_t) override {
    for (Span span : spans) madvise(base_ + span.start * page_, span.count * page_, MADV_DONTNEED);
  }
  void leave(char* alias, size_t count) override { madvise(alias, count * page_, MADV_DONTNEED); }
  void give_back() override { release(); }
  void take() override {
    if (base_) return;
    file_ = memory_file();
    bool made = file_ >= 0 && !ftruncate(file_, off_t(pages_ * page_));
    if (made) base_ = reserve(pages_);
    bool mapped = base_ && map_at(base_, {0, pages_});
    if (!mapped) release();
    must(made, "the pool's file cannot be made");
    must(mapped, "no addresses for a pool of " + std::to_string(pages_ * page_) + " bytes");
    guard(base_, pages_);
  }
  void settle() override { wait_for_copies(); }  // of a run that failed: its buffers are free

 private:
  void release() {
    if (base_) munmap(base_, pages_ * page_);
    if (file_ >= 0) close(file_);
    base_ = nullptr, file_ = -1;
  }
  char* reserve(size_t count) {
    void* at =
        mmap(nullptr, count * page_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return at == MAP_FAILED ? nullptr : static_cast<char*>(at);
  }
  bool map_at(char* at, Span span) {
    void* made = mmap(at, span.count * page_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file_,
                      off_t(span.start * page_));
    return made != MAP_FAILED;
  }
  // A child of a fork would write into the parent's tensors: it must not see them.
  void guard(char* at, size_t count) {
#ifdef MADV_DONTFORK
    madvise(at, count * page_, MADV_DONTFORK);
#else
    (void)at, (void)count;
#endif
  }
  const size_t pages_, page_;
  int file_ = -1;
  char* base_ = nullptr;
};

}  // namespace

std::unique_ptr<PageMemory> host_pages(size_t pool_bytes, size_t page_bytes) {
  auto system = size_t(sysconf(_SC_PAGESIZE));
  must(page_bytes && page_bytes % system == 0,
       "planner.page_bytes is " + std::to_string(page_bytes) + "; it must be a multiple of " +
           std::to_string(system));
  must(pool_bytes >= page_bytes, "planner.pool_bytes is " + std::to_string(pool_bytes) +
                                     ", less than a page of " + std::to_string(page_bytes));
  return std::make_unique<Host>(pool_bytes / page_bytes, page_bytes);
}

}  // namespace planner

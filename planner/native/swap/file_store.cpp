// Slots in a file that has no name any more once it is open: nothing is left of it when the process
// ends, however that ends. It is read and written past the system's cache where the file system
// can.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "pool/free_spans.h"
#include "swap/store.h"

namespace planner {
namespace {

constexpr size_t kFilePieceBytes = 1 << 20;

// Memory of a thread by way of which a tensor goes that lies between others: direct input and
// output are of whole pages.
class Staging {
 public:
  char* get() {
    if (at_) return at_;
    void* made =
        mmap(nullptr, kFilePieceBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    must(made != MAP_FAILED, "no memory to read and write the swap file by way of");
#ifdef MADV_DONTFORK
    madvise(made, kFilePieceBytes, MADV_DONTFORK);  // no copy on write while the disk writes into it
#endif
    counts.staging_bytes += kFilePieceBytes;
    return at_ = static_cast<char*>(made);
  }
  ~Staging() {
    if (!at_ || is_forked()) return;
    munmap(at_, kFilePieceBytes);
    counts.staging_bytes -= kFilePieceBytes;
  }

 private:
  char* at_ = nullptr;
};
thread_local Staging staging;

// 0, or an error number.
int allot(int file, size_t from, size_t bytes) {
#ifdef __linux__
  if (!fallocate(file, 0, off_t(from), off_t(bytes))) return 0;
  if (errno != EOPNOTSUPP) return errno;
#endif
  return ftruncate(file, off_t(from + bytes)) ? errno : 0;
}

// Past the system's cache; what cannot do that goes through it.
void make_direct(int file) {
#if defined(O_DIRECT)
  fcntl(file, F_SETFL, fcntl(file, F_GETFL) | O_DIRECT);
#elif defined(F_NOCACHE)
  fcntl(file, F_NOCACHE, 1);
#endif
}

class FileStore : public Store {
 public:
  explicit FileStore(std::string folder) : folder_(std::move(folder)) {}

  void start() override {
    std::string name = folder_ + "/planner-swap-XXXXXX";
    file_ = mkostemp(name.data(), O_CLOEXEC);
    must(file_ >= 0, "no swap file can be made in " + folder_ + ": " + std::strerror(errno) +
                         "; name another folder");
    unlink(name.c_str());
    make_direct(file_);
  }
  void stop() override {
    ::close(file_);
    counts.file_bytes -= pages_ * kSlotPageBytes;
    file_ = -1, pages_ = 0, free_ = FreeSpans(0);
  }
  void reserve(size_t bytes) override {
    size_t pages = bytes / kSlotPageBytes;
    if (pages > pages_) grow(pages - pages_);
  }

  void open(Slot& slot) override {
    size_t pages = slot.capacity / kSlotPageBytes;
    if (!pages) return;
    Span span = free_.best(pages);
    if (!span.count) {
      grow(pages);
      span = free_.best(pages);
    }
    slot.at = span.start * kSlotPageBytes;
  }
  void close(Slot& slot) override {
    free_.put({slot.at / kSlotPageBytes, slot.capacity / kSlotPageBytes});
  }
  size_t piece_bytes() const override { return kFilePieceBytes; }

  void write(const Slot& slot, size_t at, const void* from, size_t bytes, bool pages) override {
    auto memory = static_cast<const char*>(from);
    if (!pages) memory = static_cast<char*>(std::memcpy(staging.get(), from, bytes));
    move("written", slot, at, bytes, [&](size_t done, size_t left, off_t place) {
      return pwrite(file_, memory + done, left, place);
    });
  }
  void read(const Slot& slot, size_t at, void* to, size_t bytes, bool pages) override {
    auto memory = pages ? static_cast<char*>(to) : staging.get();
    move("read", slot, at, bytes, [&](size_t done, size_t left, off_t place) {
      return pread(file_, memory + done, left, place);
    });
    if (!pages) std::memcpy(to, memory, bytes);
  }

 private:
  void grow(size_t pages) {
    if (!pages) return;
    size_t bytes = pages * kSlotPageBytes;
    int failed = allot(file_, pages_ * kSlotPageBytes, bytes);
    must(!failed, "no room for " + std::to_string(bytes) + " bytes more of swaps in " + folder_ +
                      ", whose file has " + std::to_string(pages_ * kSlotPageBytes) + ": " +
                      std::strerror(failed));
    free_.put({pages_, pages});
    pages_ += pages;
    counts.file_bytes += bytes;
  }
  template <typename Some>
  void move(const char* what, const Slot& slot, size_t at, size_t bytes, const Some& some) {
    size_t whole = in_slot_pages(bytes);
    for (size_t done = 0; done < whole;) {
      ssize_t now = some(done, whole - done, off_t(slot.at + at + done));
      if (now < 0 && errno == EINTR) continue;
      must(now > 0, "the swap file in " + folder_ + " could not be " + what + " at byte " +
                        std::to_string(slot.at + at + done) + ": " +
                        (now ? std::strerror(errno) : "it ends there"));
      done += size_t(now);
    }
  }
  const std::string folder_;
  int file_ = -1;
  size_t pages_ = 0;  // of the file
  FreeSpans free_{0};
};

}  // namespace

std::unique_ptr<Store> file_store(const std::string& folder) {
  return std::make_unique<FileStore>(folder);
}

}  // namespace planner

// Pages of a CUDA device, by the driver's calls for virtual memory.
#include "common.h"
#include "cuda/driver.h"
#include "pool/page_memory.h"

namespace planner {
namespace {

class Device : public PageMemory {
 public:
  Device(size_t pool_bytes, size_t page) {
    must(d_.missing.empty(), d_.missing);
    cuda::Properties properties;
    size_t least = 0;
    d_.check(d_.context_get(&context_), "cuCtxGetCurrent");
    d_.check(d_.context_device(&properties.location.id), "cuCtxGetDevice");
    d_.check(d_.granularity(&least, &properties, cuda::kMinimumGranularity),
             "cuMemGetAllocationGranularity");
    page_ = (std::max(page, size_t(1)) + least - 1) / least * least;
    access_.location = properties.location;
    size_t count = pool_bytes / page_;
    must(count, "a pool of " + std::to_string(pool_bytes) +
                    " bytes is less than the device's page of " + std::to_string(page_));
    for (size_t i = 0; i < count; i++) {
      cuda::Handle handle = 0;
      auto result = d_.memory_create(&handle, page_, &properties, 0);
      if (result) release();
      must(!result, "the device has " + std::to_string(i * page_) + " bytes for a pool of " +
                        std::to_string(pool_bytes));
      handles_.push_back(handle);
    }
    base_ = map({{0, count}}, count);
    if (!base_) release();
    must(base_, "the pool's pages cannot be mapped on the device");
  }
  ~Device() override {
    settle();
    unmap(base_, handles_.size());
    release();
  }
  char* base() const override { return base_; }
  size_t page_bytes() const override { return page_; }
  size_t pages() const override { return handles_.size(); }
  size_t piece_bytes() const override { return 256; }  // as cuMemAlloc aligns

  char* map(const std::vector<Span>& spans, size_t count) override {
    cuda::Address at = 0;
    if (d_.address_reserve(&at, count * page_, 0, 0, 0)) return nullptr;
    size_t mapped = 0;
    bool good = true;
    for (Span span : spans)
      for (size_t i = span.start; good && i < span.start + span.count; i++) {
        good = !d_.map(at + mapped * page_, page_, 0, handles_[i], 0);
        if (good) mapped++;
      }
    good = good && !d_.set_access(at, count * page_, &access_, 1);
    if (good) return reinterpret_cast<char*>(at);
    if (mapped) d_.unmap(at, mapped * page_);
    d_.address_free(at, count * page_);
    return nullptr;
  }
  void unmap(char* at, size_t count) override {
    d_.unmap(cuda::address(at), count * page_);
    d_.address_free(cuda::address(at), count * page_);
  }
  void enter(char*, const std::vector<Span>&, size_t) override {}
  void leave(char*, size_t) override {}
  void settle() override {
    void* was = nullptr;
    if (d_.context_push(context_)) return;  // it is gone, and its work with it
    d_.context_wait();
    d_.context_pop(&was);
  }

 private:
  void release() {
    for (auto handle : handles_) d_.memory_release(handle);
    handles_.clear();
  }
  const cuda::Driver& d_ = cuda::driver();
  cuda::Access access_;
  void* context_ = nullptr;  // of the thread that made the pool
  size_t page_ = 0;
  std::vector<cuda::Handle> handles_;
  char* base_ = nullptr;
};

}  // namespace

std::unique_ptr<PageMemory> device_pages(size_t pool_bytes, size_t page_bytes) {
  return std::make_unique<Device>(pool_bytes, page_bytes);
}

}  // namespace planner

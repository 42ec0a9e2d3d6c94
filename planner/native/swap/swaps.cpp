#include "swap/swaps.h"

#include <unordered_map>
#include <vector>

namespace planner {
namespace {

// A key is the address of t, u or y, which are alive as long as the swap is in that state: no two
// swaps of the process have one key. Where a failed run left one, the next to have its address ends
// it.
struct Registry {
  std::mutex mutex;
  std::unordered_map<const void*, std::unique_ptr<Swap>> swaps;
  std::unordered_map<const void*, Run> runs;  // by the address of r
};
Registry& registry() {
  static auto* there =
      new Registry;  // never freed: sessions may close after static objects are gone
  return *there;
}

}  // namespace

Tier& tier_of(bool cuda) {
  if (cuda) {
    static auto* device = new Tier(cuda_backend());
    return *device;
  }
  static auto* host = new Tier(cpu_backend());
  return *host;
}

Tier& tier_in(const std::string& folder) {
  static std::mutex mutex;
  static auto* made = new std::map<std::string, Tier*>;  // not freed, as the others
  std::lock_guard<std::mutex> lock(mutex);
  Tier*& tier = (*made)[folder];
  if (!tier) tier = new Tier(*disk_backend(folder).release());
  return *tier;
}

int64_t begin_run(const void* session, const void* r) {
  auto is_left = [&](const Swap& swap) { return swap.run.session == session; };
  abandon([&](const Swap& swap) { return is_left(swap) && swap.run.thread.expired(); });
  int64_t left = abandon([&](const Swap& swap) { return is_left(swap) && swap.run.is_here(); });
  std::lock_guard<std::mutex> lock(registry().mutex);
  registry().runs[r] = {session, this_thread()};
  return left;
}

Run run_of(const void* r) {
  std::lock_guard<std::mutex> lock(registry().mutex);
  auto at = registry().runs.find(r);
  must(at != registry().runs.end(), "the input r is not of a SwapBegin");
  return at->second;
}

void name_swap(const void* key, std::unique_ptr<Swap> swap) {
  std::lock_guard<std::mutex> lock(registry().mutex);
  auto& at = registry().swaps[key];
  std::swap(at, swap);
  if (!swap) return;
  counts.abandoned++;  // of a failed run; ended here
  swap->tier.backend.settle(swap->slot);  // while locked: wait_for_copies sees it no more
}

std::unique_ptr<Swap> take_swap(const void* key, const char* reader) {
  std::lock_guard<std::mutex> lock(registry().mutex);
  auto at = registry().swaps.find(key);
  must(at != registry().swaps.end(),
       std::string(reader) +
           " reads what no swap under way has made, or a swap that drain() has ended");
  auto swap = std::move(at->second);
  registry().swaps.erase(at);
  return swap;
}

void wait_for_copies() {
  std::lock_guard<std::mutex> lock(registry().mutex);
  for (auto& [key, swap] : registry().swaps) swap->tier.backend.settle(swap->slot);
}

int64_t abandon(const std::function<bool(const Swap&)>& is) {
  std::vector<std::unique_ptr<Swap>> left;
  {
    std::lock_guard<std::mutex> lock(registry().mutex);
    auto& swaps = registry().swaps;
    for (auto at = swaps.begin(); at != swaps.end();) {
      if (!is(*at->second)) {
        ++at;
        continue;
      }
      // While locked: wait_for_copies sees it no more, and a pool may then unmap what is copied.
      at->second->tier.backend.settle(at->second->slot);
      left.push_back(std::move(at->second));
      at = swaps.erase(at);
    }
  }
  counts.abandoned += left.size();
  return left.size();  // `left` goes unlocked: what it holds goes back to a pool, which has a lock
}

void forget_session(const void* session) {
  abandon([&](const Swap& swap) { return swap.run.session == session; });
  std::lock_guard<std::mutex> lock(registry().mutex);
  auto& runs = registry().runs;
  for (auto at = runs.begin(); at != runs.end();)
    at = at->second.session == session ? runs.erase(at) : std::next(at);
}

}  // namespace planner

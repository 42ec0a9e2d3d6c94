#include "arena.h"

#include <algorithm>

namespace planner::search {

Arena::Arena(int64_t bytes) { add(0, bytes, kNone, kNone); }

int64_t Arena::take(int64_t bytes) {
  if (largest() < bytes) {
    missing_ = bytes - largest();
    return kNone;
  }
  auto at = std::lower_bound(free_.begin(), free_.end(), bytes,
                             [](const Free& free, int64_t size) { return free.size < size; });
  int64_t chunk = at->chunk;
  forget(at);
  Chunk taken = chunks_[chunk];
  if (taken.size > bytes) {
    chunks_[chunk].size = bytes;
    add(taken.offset + bytes, taken.size - bytes, chunk, taken.above);
  }
  in_use_ += bytes;
  peak_ = std::max(peak_, in_use_);
  return chunk;
}

// A new chunk, free, between two neighbours.
void Arena::add(int64_t offset, int64_t size, int64_t below, int64_t above) {
  auto chunk = int64_t(chunks_.size());
  chunks_.push_back({offset, size, below, above, false});
  if (below != kNone) chunks_[below].above = chunk;
  if (above != kNone) chunks_[above].below = chunk;
  remember(chunk);
}

void Arena::remember(int64_t chunk) {
  chunks_[chunk].is_free = true;
  free_.insert(place_of(chunk), {chunks_[chunk].size, chunks_[chunk].offset, chunk});
}

void Arena::forget(std::vector<Free>::iterator at) {
  chunks_[at->chunk].is_free = false;
  free_.erase(at);
}

std::vector<Arena::Free>::iterator Arena::place_of(int64_t chunk) {
  Free wanted{chunks_[chunk].size, chunks_[chunk].offset, chunk};
  return std::lower_bound(free_.begin(), free_.end(), wanted);
}

// Joins a chunk with free neighbours.
void Arena::give_back(int64_t chunk) {
  Chunk& freed = chunks_[chunk];
  in_use_ -= freed.size;
  int64_t above = freed.above, below = freed.below;
  if (above != kNone && chunks_[above].is_free) {
    forget(place_of(above));
    freed.size += chunks_[above].size;
    freed.above = chunks_[above].above;
    if (freed.above != kNone) chunks_[freed.above].below = chunk;
  }
  if (below != kNone && chunks_[below].is_free) {
    forget(place_of(below));
    chunks_[below].size += freed.size;
    chunks_[below].above = freed.above;
    if (freed.above != kNone) chunks_[freed.above].below = below;
    chunk = below;
  }
  remember(chunk);
}

}  // namespace planner::search

// The pools of the process: those of the CPU's sessions, and one of a CUDA device's.
#pragma once

#include "common.h"
#include "pool/pool.h"

namespace planner {

struct HostPool;  // never freed: sessions keep its allocator

// A new pool of so many bytes on the CPU. What it has no room for is served from elsewhere, up to
// `spill_bytes`, and then refused. Pools that are empty give their memory back: which sessions are
// gone is not told. Throws where it cannot be made.
HostPool* host_pool(size_t pool_bytes, size_t page_bytes, size_t spill_bytes);

// Has every CPU tensor of the sessions that are created from now on with
// session.use_env_allocators come from this pool. Sessions before keep theirs.
void serve_next(HostPool* pool);
bool is_of(HostPool* pool, const void* at);      // a buffer of its, spilled or not
bool has_pages(HostPool* pool, const void* at);  // one with its pages to itself

}  // namespace planner

// The pools of the process: those of the CPU's sessions, and one of a CUDA device's.
#pragma once

#include "common.h"
#include "pool.h"

namespace planner {

struct HostPool;  // never freed: sessions keep its allocator

// A pool of so many bytes on the CPU that nothing is in: one that is there, or a new one. One that
// `spills` serves what it has no room for from elsewhere; another refuses it. Throws where it cannot
// be made.
HostPool* host_pool(size_t pool_bytes, size_t page_bytes, bool spills);

// Has every CPU tensor of the sessions that are created from now on with
// session.use_env_allocators come from this pool. Sessions before keep theirs.
void serve_next(HostPool* pool);
bool is_of(HostPool* pool, const void* at);

}  // namespace planner

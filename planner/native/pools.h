// The pools of the process: one for the CPU's tensors, one for a CUDA device's.
#pragma once

#include "common.h"
#include "pool.h"

namespace planner {

// Has every CPU tensor of the session come from a pool of so many bytes. Throws where the process
// has a pool of another size whose memory is in use.
void use_host_pool(ort::SessionOptions* options, size_t pool_bytes, size_t page_bytes);
bool is_of_host_pool(const void* at);

}  // namespace planner

// The CUDA driver's functions that the library calls, loaded by name. Nothing of CUDA's is needed
// to build it. Prototypes and constants are those of cuda.h 13.0; an address on the device is an
// integer there.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace planner::cuda {

using Result = int;
using Address = unsigned long long;
using Handle = unsigned long long;  // of physical memory

constexpr unsigned kNonBlocking = 1;    // CU_STREAM_NON_BLOCKING
constexpr unsigned kNoTiming = 2;       // CU_EVENT_DISABLE_TIMING
constexpr unsigned kPortable = 1;       // CU_MEMHOSTALLOC_PORTABLE
constexpr int kCapabilityMajor = 75;    // CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR
constexpr int kCapabilityMinor = 76;    // CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR
constexpr int kMinimumGranularity = 0;  // CU_MEM_ALLOC_GRANULARITY_MINIMUM

struct Location {  // CUmemLocation
  int type = 1;    // CU_MEM_LOCATION_TYPE_DEVICE
  int id = 0;
};
struct Properties {      // CUmemAllocationProp
  int type = 1;          // CU_MEM_ALLOCATION_TYPE_PINNED
  int handle_types = 0;  // none: it is not shared with other processes
  Location location;
  void* win32_metadata = nullptr;
  unsigned char flags[8] = {};
};
struct Access {  // CUmemAccessDesc
  Location location;
  int flags = 3;  // CU_MEM_ACCESS_FLAGS_PROT_READWRITE
};

// X(symbol, member, arguments)
#define PLANNER_CUDA_FUNCTIONS(X)                                                                  \
  X(cuStreamCreate, stream_create, (void**, unsigned))                                             \
  X(cuStreamWaitEvent, stream_wait, (void*, void*, unsigned))                                      \
  X(cuEventCreate, event_create, (void**, unsigned))                                               \
  X(cuEventRecord, event_record, (void*, void*))                                                   \
  X(cuEventSynchronize, event_wait, (void*))                                                       \
  X(cuEventDestroy_v2, event_destroy, (void*))                                                     \
  X(cuMemcpyDtoHAsync_v2, copy_to_host, (void*, Address, size_t, void*))                           \
  X(cuMemcpyHtoDAsync_v2, copy_to_device, (Address, const void*, size_t, void*))                   \
  X(cuMemcpyDtoDAsync_v2, copy_on_device, (Address, Address, size_t, void*))                       \
  X(cuMemHostAlloc, host_alloc, (void**, size_t, unsigned))                                        \
  X(cuMemFreeHost, host_free, (void*))                                                             \
  X(cuCtxGetCurrent, context_get, (void**))                                                        \
  X(cuCtxPushCurrent_v2, context_push, (void*))                                                    \
  X(cuCtxPopCurrent_v2, context_pop, (void**))                                                     \
  X(cuCtxGetDevice, context_device, (int*))                                                        \
  X(cuCtxSynchronize, context_wait, ())                                                            \
  X(cuDriverGetVersion, driver_version, (int*))                                                    \
  X(cuDeviceGetAttribute, device_attribute, (int*, int, int))                                      \
  X(cuModuleLoadDataEx, module_load, (void**, const void*, unsigned, int*, void**))                \
  X(cuModuleGetFunction, module_function, (void**, void*, const char*))                            \
  X(cuLaunchKernel, launch,                                                                        \
    (void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*, void**,   \
     void**))                                                                                      \
  X(cuGetErrorString, error_string, (Result, const char**))                                        \
  X(cuMemGetAllocationGranularity, granularity, (size_t*, const Properties*, int))                 \
  X(cuMemCreate, memory_create, (Handle*, size_t, const Properties*, unsigned long long))          \
  X(cuMemRelease, memory_release, (Handle))                                                        \
  X(cuMemAddressReserve, address_reserve, (Address*, size_t, size_t, Address, unsigned long long)) \
  X(cuMemAddressFree, address_free, (Address, size_t))                                             \
  X(cuMemMap, map, (Address, size_t, size_t, Handle, unsigned long long))                          \
  X(cuMemUnmap, unmap, (Address, size_t))                                                          \
  X(cuMemSetAccess, set_access, (Address, size_t, const Access*, size_t))

struct Driver {
#define PLANNER_CUDA_MEMBER(symbol, member, arguments) Result(*member) arguments = nullptr;
  PLANNER_CUDA_FUNCTIONS(PLANNER_CUDA_MEMBER)
#undef PLANNER_CUDA_MEMBER

  std::string missing;  // why the driver cannot be used; empty where it can
  Driver();
  void check(Result result, const char* symbol) const;  // throws the driver's own words
};

const Driver& driver();  // loaded at the first call

inline Address address(const void* at) { return reinterpret_cast<Address>(at); }

}  // namespace planner::cuda

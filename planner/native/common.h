// What all files share: errors, counters, the settings of a session.
#pragma once

#include <atomic>
#include <cstdint>
#include <stdexcept>
#include <string>

#include "export.h"
#include "ort_abi.h"

namespace planner {

// Tests build the library with the operators of the CPU provider on the CUDA backend, whose driver
// PLANNER_TEST_DRIVER names, and leave out a wait by PLANNER_TEST_MUTANT. Nothing of it is in a
// shipped build.
#ifdef PLANNER_TEST_BUILD
constexpr bool kTestBuild = true;
#else
constexpr bool kTestBuild = false;
#endif

// Ends an operator or a registration; ONNX Runtime adds the node's name to the message.
inline void must(bool holds, const std::string& otherwise) {
  if (!holds) throw std::runtime_error("planner.swap: " + otherwise);
}

// Counts of the whole process; planner_native_counts() gives them in this order.
struct Counts {
  std::atomic<int64_t> swaps_out{0};   // copies out begun, stores among them
  std::atomic<int64_t> swaps_in{0};    // copies in ended, loads among them
  std::atomic<int64_t> live_slots{0};  // slots that hold a swap now
  std::atomic<int64_t> slots{0};       // slots that exist
  std::atomic<int64_t> slot_bytes{0};  // host memory of all slots
  std::atomic<int64_t> file_bytes{0};  // of the files that slots lie in
  std::atomic<int64_t> staging_bytes{0};  // memory by way of which these are written and read
  std::atomic<int64_t> violations{0};  // of planner.check_swaps
  std::atomic<int64_t> waits{0};  // waits of the compute thread that found a copy under way (CPU)
  std::atomic<int64_t> waited_us{0};     // their time
  std::atomic<int64_t> copied_views{0};  // SwapInDone whose output is not its input's buffer
  std::atomic<int64_t> abandoned{0};     // swaps that a failed run or a closed session left
};
extern Counts counts;

struct HostPool;
struct Tier;

// The entries of a session that its operators read. Equal settings share one object, which is never
// freed.
struct Settings {
  HostPool* pool = nullptr;  // of planner.pool_bytes
  bool check = false;        // planner.check_swaps
  int64_t link_mbps =
      0;  // planner.link_mbps: 10^6 bytes a second of each direction; 0: as fast as it goes
  int64_t link_jitter_us =
      0;  // planner.link_jitter_us: a copy waits a random while below this first
  Tier* disk = nullptr;    // of planner.disk_folder: slots lie in a file there
  int64_t disk_bytes = 0;  // planner.disk_bytes: of that file, for each session
};

// Whether this process was forked from one that had loaded the library: it has none of the worker
// threads, and its locks may be held by threads that it does not have.
bool is_forked();

inline std::string forked_text() {
  return "this process was forked from one that had loaded planner's library; start it by spawn "
         "(multiprocessing.set_start_method('spawn')), or load the library in the child alone";
}

// ONNX Runtime's functions; set by the first registration.
extern const ort::Functions* api;

inline void succeed(ort::Status* status) {
  if (!status) return;
  std::string text = api->GetErrorMessage(status);
  api->ReleaseStatus(status);
  throw std::runtime_error(text);
}

}  // namespace planner

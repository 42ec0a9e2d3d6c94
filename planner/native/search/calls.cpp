// The functions that planner/search/fast/core.py calls. Each stands alone: threads may call them
// side by side, with arrays of their own.
#include "../export.h"
#include "moves.h"
#include "placing.h"
#include "scheduler.h"

using namespace planner::search;
using planner::unless_out_of_memory;

// Writes the actions of a plan to the steps; returns how many, or kOverflow.
PLANNER_EXPORT int64_t planner_search_schedule(const Problem* problem, const Steps* steps,
                                               const Plan* plan) {
  return unless_out_of_memory([&] { return Scheduler(*problem, *steps).run(*plan); });
}

// Replays the first `count` actions of the steps: on one stream, or with copies beside the
// operations.
PLANNER_EXPORT int64_t planner_search_replay(const Problem* problem, const Steps* steps,
                                             int64_t count, int64_t overlap, Replay* replay) {
  return unless_out_of_memory([&] {
    Replayer replayer(*problem, *steps);
    *replay = replayer.run(count);
    if (overlap) replay->time_us = replayer.overlapped(count);
    return 0;
  });
}

// See placing.h.
PLANNER_EXPORT int64_t planner_search_place(const Problem* problem, const Steps* steps,
                                            int64_t count, int64_t rounds, Replay* replay) {
  return unless_out_of_memory([&] {
    Replayer replayer(*problem, *steps);
    *replay = place_and_time(*problem, *steps, replayer, replayer.run(count), count, rounds);
    return 0;
  });
}

// See moves.h; the time of the plan is updated.
PLANNER_EXPORT int64_t planner_search_change(const Problem* problem, const Steps* steps,
                                             const Plan* plan, const Change* change,
                                             double* time_us) {
  return unless_out_of_memory([&] {
    *time_us = Mover(*problem, *steps, *plan).change(*change, *time_us);
    return 0;
  });
}

// See moves.h.
PLANNER_EXPORT int64_t planner_search_anneal(const Problem* problem, const Steps* steps,
                                             const Plan* plan, const Plan* best,
                                             const Annealing* annealing, Heat* heat) {
  return unless_out_of_memory(
      [&] { return Mover(*problem, *steps, *plan).anneal(*best, *annealing, *heat); });
}

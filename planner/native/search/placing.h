// Copies beside the operations, listed where they hide.
#pragma once

#include "replayer.h"

namespace planner::search {

// Lists the copies among the `count` actions of the steps (just in time, replayed as `replay`)
// elsewhere, so many rounds, each by the starts and ends of the one before. With one round, what
// comes out is taken as it is; with more, the best is, just in time included. Returns the replay of
// the schedule that is now in the steps, its time on three engines.
//
// Backwards from the last, each copy in is given the latest start that still ends before its reader
// and before the next copy in starts, and is held back to where its memory is free. Copies out run
// by deadline: of those whose tensor was made, the one that must be gone first.
Replay place_and_time(const Problem& problem, const Steps& steps, Replayer& replayer, Replay replay,
                      int64_t count, int64_t rounds);

}  // namespace planner::search

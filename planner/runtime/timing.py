"""Step times of two models, measured alternately: a busy machine slows both alike. Where memory is
short, blocks of runs alternate."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy.typing as npt

from planner.results.verification import TimeCheck
from planner.runtime.machine import BUSY, proc_bytes, waited_s, waited_share
from planner.runtime.options import Opening, default_threads, stop_spinning
from planner.runtime.profile import create_session, run_session
from planner.units import format_percent

if TYPE_CHECKING:
    import onnxruntime as ort

_SHRINK = ("memory.enable_memory_arena_shrinkage", "cpu:0")


@dataclass(frozen=True, slots=True, kw_only=True)
class Length:
    """The number of runs to time.

    Attributes:
        warm_ups: runs of each model that do not count.
        runs: runs of each model that count; more where a step is short, up to `min_s` seconds in all.
    """

    warm_ups: int
    runs: int
    min_s: float


QUICK = Length(warm_ups=1, runs=3, min_s=0.4)
THOROUGH = Length(warm_ups=2, runs=5, min_s=1.0)

COLD_RUNS, _GIVEN_BACK = 2, 1
"""Runs that take pages from the system: of a session, and once its arena was given back."""

_BLOCKS = ((0, COLD_RUNS, 2), (1, COLD_RUNS, 4), (0, _GIVEN_BACK, 2))
"""Blocks of runs where memory is short: (the model, warm-up runs, counted runs)."""

_MOST_SHARE = 0.75
"""The most that both arenas may take, as a share of the memory that is free or this process's own."""

_MAX_RUNS = 200
_SOME = 6
"""Turns below which their ratios say nothing of how steady times are."""

_STEADY, _LONGER = 0.05, 8.0
"""Largest relative difference of two ratios that agree; factor on the time of runs while they do not."""
_LONG_S, _LONG = 10.0, Length(warm_ups=1, runs=3, min_s=0.0)
"""The seconds of a long step, and its number of runs: minutes of them would tell little more."""


def time_in_turns(
    sessions: tuple[ort.InferenceSession, ort.InferenceSession],
    inputs: Mapping[str, npt.NDArray[Any]],
    *,
    length: Length,
    held_bytes: int,
) -> tuple[TimeCheck, tuple[str, ...]]:
    """Return the step times of both models once they are warm, and notes where some are due.

    Args:
        sessions: sessions of the original and of the rewritten model (`timed_session`).
        length: number of runs; at most three where a step takes over ten seconds.
        held_bytes: bytes of both arenas together. Where memory is too short for them, blocks of runs
            alternate, and each arena is released in between.
    """
    runs = _Runs(sessions=sessions, inputs=inputs)
    began, waited = time.perf_counter(), waited_s()
    notes: list[str] = []
    if _is_short(held_bytes):
        runs.in_blocks()
        notes.append("both arenas do not fit at once: the models were timed in blocks of runs")
    else:
        runs.in_turns(length)
    check = runs.check
    if len(check.original_us) >= _SOME and not is_steady(check):
        notes.append(
            f"step times vary from turn to turn: x{check.median_ratio:.3f} by the median of the turns' "
            f"ratios, x{check.ratio:.3f} by the least times"
        )
    busy = waited_share(waited, time.perf_counter() - began, default_threads())
    if busy > BUSY:
        notes.append(
            "the machine was busy while steps were timed: threads waited for a core for "
            f"{format_percent(busy)} of the time"
        )
    return check, tuple(notes)


def is_steady(check: TimeCheck) -> bool:
    """Tell whether the ratio of the least times is about that of most turns.

    It is not where a machine changes its speed, and one model's least time is from a fast phase.
    """
    return abs(check.ratio / check.median_ratio - 1) <= _STEADY


@dataclass(slots=True, kw_only=True)
class _Runs:
    """Timed runs of two models; `times` has the microseconds of each counted run."""

    sessions: tuple[ort.InferenceSession, ort.InferenceSession]
    inputs: Mapping[str, npt.NDArray[Any]]
    times: tuple[list[float], list[float]] = field(default_factory=lambda: ([], []))

    @property
    def check(self) -> TimeCheck:
        """The times so far."""
        original, rewritten = (tuple(times) for times in self.times)
        return TimeCheck(original_us=original, rewritten_us=rewritten)

    def in_turns(self, length: Length) -> None:
        """Run each model once in turn, again and again; longer while the turns disagree."""
        for index in range(_MAX_RUNS):
            spent_s = sum(self.times[0]) / 1e6
            is_enough = index >= length.runs + length.warm_ups and spent_s >= length.min_s
            is_over = len(self.times[0]) >= _SOME and spent_s >= _LONGER * length.min_s
            if is_enough and (is_over or not length.min_s or is_steady(self.check)):
                break
            # the first model of a turn alternates too
            for which in (0, 1) if index % 2 else (1, 0):
                elapsed_us = self._run(which)
                if index >= length.warm_ups:
                    self.times[which].append(elapsed_us)
                if index == 0 and elapsed_us > _LONG_S * 1e6:
                    length = _LONG

    def in_blocks(self) -> None:
        """Run a block of the original, one of the rewritten model, and one of the original again.

        A run takes pages from the system where it needs more than all runs before it: the first of a
        session; the second, which has the whole step's block (`planner.runtime.options`); and the first
        after the arena was released. These runs do not count, nor does one that releases the arena.
        """
        for block, (which, warm_ups, runs) in enumerate(_BLOCKS):
            for _ in range(warm_ups):
                self._run(which)
            self.times[which].extend(self._run(which) for _ in range(runs))
            if block < len(_BLOCKS) - 1:
                self._run(which, gives_back=True)

    def _run(self, which: int, *, gives_back: bool = False) -> float:
        """Return the microseconds of one run."""
        import onnxruntime as ort

        options = ort.RunOptions()
        if gives_back:
            options.add_run_config_entry(*_SHRINK)
        start = time.perf_counter()
        results = run_session(self.sessions[which], self.inputs, options)
        elapsed_us = (time.perf_counter() - start) * 1e6
        del results
        return elapsed_us


def _is_short(held_bytes: int) -> bool:
    """Tell whether memory is too short for arenas of this size, part of which may be held already."""
    available = available_bytes()
    return available is not None and held_bytes > _MOST_SHARE * (available + own_bytes())


def timed_session(path: Path, opening: Opening) -> ort.InferenceSession:
    """Create a session for timing beside others in one process.

    Raises:
        ModelError: ONNX Runtime cannot load the model.
    """
    options = opening.options()
    stop_spinning(options)
    return create_session(path, options)


def own_bytes() -> int:
    """Return the resident memory of this process in bytes.

    Raises:
        OSError: the system does not say; it does where `available_bytes` is not None.
    """
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def available_bytes() -> int | None:
    """Return the memory that the system could give, in bytes; None where it does not say."""
    return proc_bytes(Path("/proc/meminfo"), "MemAvailable")

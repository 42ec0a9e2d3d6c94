"""Step times of two models, measured in turns so that a busy machine slows both alike."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy.typing as npt

from planner.results import TimeCheck
from planner.runtime.machine import BUSY, waited_s, waited_share
from planner.runtime.options import Opening, default_threads, stop_spinning
from planner.runtime.profile import create_session, run_session
from planner.units import format_percent

if TYPE_CHECKING:
    import onnxruntime as ort

_SHRINK = ("memory.enable_memory_arena_shrinkage", "cpu:0")


@dataclass(frozen=True, slots=True, kw_only=True)
class Length:
    """How long to time.

    Attributes:
        warm_ups: runs of each model that do not count.
        runs: of each model; more where a step is short, until `min_s` seconds are measured.
    """

    warm_ups: int
    runs: int
    min_s: float


QUICK = Length(warm_ups=1, runs=3, min_s=0.4)
THOROUGH = Length(warm_ups=2, runs=5, min_s=1.0)

_MAX_RUNS = 200
_LONG_S, _LONG = 10.0, Length(warm_ups=1, runs=3, min_s=0.0)
"""Steps longer than this are timed no longer than so: minutes of them say little more."""


def time_in_turns(
    sessions: tuple[ort.InferenceSession, ort.InferenceSession],
    inputs: Mapping[str, npt.NDArray[Any]],
    *,
    length: Length,
    held_bytes: int,
) -> tuple[TimeCheck, str]:
    """Times of each model once it is warm, and a note where one is due.

    Args:
        sessions: of the original and of the rewritten model (`timed_session`).
        length: three runs at most where a step takes over ten seconds.
        held_bytes: of both arenas together. Where that is more than half of the free memory, each
            arena is given back after every run, which slows both models.
    """
    import onnxruntime as ort

    run_options = ort.RunOptions()
    note = ""
    available = available_bytes()
    if available is not None and held_bytes > available // 2:
        run_options.add_run_config_entry(*_SHRINK)
        note = "times include giving memory back after each run: both arenas did not fit at once"
    times: tuple[list[float], list[float]] = ([], [])
    began, waited = time.perf_counter(), waited_s()
    for index in range(_MAX_RUNS):
        if index >= length.runs + length.warm_ups and sum(times[0]) >= length.min_s * 1e6:
            break
        # who goes first alternates too
        for which in (0, 1) if index % 2 else (1, 0):
            start = time.perf_counter()
            results = run_session(sessions[which], inputs, run_options)
            elapsed = time.perf_counter() - start
            del results
            if index == 0 and elapsed > _LONG_S:
                length = _LONG
            if index >= length.warm_ups:
                times[which].append(elapsed * 1e6)
    busy = waited_share(waited, time.perf_counter() - began, default_threads())
    if busy > BUSY:
        said = (
            "the machine was busy while steps were timed: threads waited for a core for "
            f"{format_percent(busy)} of the time"
        )
        note = f"{note}; {said}" if note else said
    return TimeCheck(original_us=tuple(times[0]), rewritten_us=tuple(times[1])), note


def timed_session(path: Path, opening: Opening) -> ort.InferenceSession:
    """A session to be timed beside others in one process.

    Raises:
        ModelError: ONNX Runtime cannot load the model.
    """
    options = opening.options()
    stop_spinning(options)
    return create_session(path, options)


def available_bytes() -> int | None:
    """Memory that the system could give, or None where it does not say."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None

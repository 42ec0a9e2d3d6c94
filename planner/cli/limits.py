"""Limits on planner's own memory and time, watched by threads whatever the command does.

A limit of the system (RLIMIT_AS, RLIMIT_DATA) makes an allocation fail, and native code aborts then.
Therefore a thread adds up the memory of this process and its children, and ends them with one line
above the limit. Another thread ends them when the time is over: ONNX Runtime loads, optimizes and
runs a model in one call that cannot be interrupted otherwise.
"""

from __future__ import annotations

import contextlib
import os
import threading
from pathlib import Path

from planner.cli import console
from planner.cli.ending import leave, what_is_written
from planner.errors import MemoryLimitError, TimeLimitError, UsageError
from planner.report.plain import printable
from planner.units import check_time_limit, format_both, format_bytes, parse_bytes

_PERIOD_S = 0.05
_PROC = Path("/proc")

_stop = threading.Event()


def limit_memory(text: str | None) -> None:
    """Watch the memory from now on; for `--memory-limit`.

    Raises:
        UsageError: the size cannot be parsed, or memory cannot be watched on this system.
    """
    if text is None:
        return
    limit = parse_bytes(text, what="--memory-limit")
    if not (_PROC / "self" / "statm").exists():
        raise UsageError(
            "--memory-limit needs /proc, which this system does not have; leave it out"
        )
    _stop.clear()
    threading.Thread(target=_watch, args=(limit,), daemon=True).start()


def limit_time(limit_s: float | None) -> None:
    """End the command after that many seconds; for `--timeout`.

    Raises:
        UsageError: `limit_s` is not a valid number of seconds.
    """
    if limit_s is None:
        return
    check_time_limit(limit_s, what="--timeout")
    _stop.clear()
    threading.Thread(target=_wait, args=(limit_s,), daemon=True).start()


def no_limit() -> None:
    """Stop watching memory and time."""
    _stop.set()


def held_bytes() -> int:
    """Return the resident bytes of this process and its children, without pages that a file backs."""
    total, seen, todo = 0, set(), [os.getpid()]
    while todo:
        pid = todo.pop()
        if pid in seen:
            continue
        seen.add(pid)
        with contextlib.suppress(OSError, ValueError, IndexError):  # it has ended
            fields = (_PROC / str(pid) / "statm").read_text().split()
            total += (int(fields[1]) - int(fields[2])) * os.sysconf("SC_PAGE_SIZE")
            for task in (_PROC / str(pid) / "task").iterdir():
                todo += map(int, (task / "children").read_text().split())
    return total


def _wait(limit_s: float) -> None:
    if not _stop.wait(limit_s):
        stage = printable(console.verbosity.stage)
        leave(
            f"planner: error: --timeout {limit_s:g} s passed{f' while at: {stage}' if stage else ''}; "
            f"{what_is_written()}; allow more, or plan a smaller model",
            TimeLimitError.exit_code,
        )


def _watch(limit: int) -> None:
    while not _stop.wait(_PERIOD_S):
        held = held_bytes()
        if held > limit and not _stop.is_set():
            leave(
                f"planner: error: planner itself took {format_bytes(held)} of memory, more than "
                f"--memory-limit {format_both(limit)}; allow more, or plan a smaller model",
                MemoryLimitError.exit_code,
            )

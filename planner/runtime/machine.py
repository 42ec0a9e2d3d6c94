"""Figures of the machine from the system: how busy it is, and the size of its caches."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

_TASKS = Path("/proc/self/task")
_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")

BUSY = 0.1
"""The share of time spent waiting for a core from which on measured times are too long."""

_IDLE_LOAD, _IDLE_SHARE = 0.5, 0.1
"""Threads that run or wait, on average over a minute, below which a machine is idle; the same for each
core of a machine with many."""

_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def is_idle() -> bool:
    """Tell whether other work hardly needs a core: by the system's load of the last minute."""
    with contextlib.suppress(OSError):
        return os.getloadavg()[0] < max(_IDLE_LOAD, _IDLE_SHARE * (os.cpu_count() or 1))
    return False


def waited_s() -> float | None:
    """Return the seconds that the threads of this process waited for a core since they began.

    The figure is the second one of Linux's `schedstat`; None where the system does not count.
    """
    waited_ns, seen = 0, False
    with contextlib.suppress(OSError):
        for file in _TASKS.glob("*/schedstat"):
            with contextlib.suppress(OSError, ValueError, IndexError):
                waited_ns += int(file.read_text().split()[1])
                seen = True
    return waited_ns / 1e9 if seen else None


def waited_share(before_s: float | None, spent_s: float, threads: int) -> float:
    """Return the share of the last `spent_s` seconds for which each of `threads` threads waited for a
    core.

    Args:
        before_s: `waited_s` at their beginning.

    Returns:
        0 where the system does not count.
    """
    now_s = waited_s()
    if before_s is None or now_s is None or spent_s <= 0:
        return 0.0
    return max(0.0, now_s - before_s) / (spent_s * threads)


def proc_bytes(file: Path, key: str) -> int | None:
    """Return the bytes of a line "key: N kB" of a file in /proc; None where the system has none."""
    try:
        lines = file.read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith(f"{key}:")), None)


def last_cache_bytes() -> int:
    """Return the bytes of the largest cache that a core has or shares; 0 where the system does not
    say."""
    sizes = [0]
    for file in _CACHES.glob("index*/size"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            text = file.read_text().strip()
            unit = _UNITS.get(text[-1])
            sizes.append(int(text[:-1]) * unit if unit else int(text))
    return max(sizes)

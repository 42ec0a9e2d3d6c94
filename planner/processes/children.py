"""Child processes that end with their parent, however that ends."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence

_PARENT = "PLANNER_PARENT"
_SET_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG

_background: list[subprocess.Popen[bytes]] = []


def run_child(
    argv: Sequence[str],
    *,
    environment: Mapping[str, str] | None = None,
    timeout_s: float | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, out of reach of the terminal's Ctrl-C, and capture its output.

    Args:
        environment: variables to set, in addition to the process's own.

    Raises:
        subprocess.TimeoutExpired: it was ended after `timeout_s`.
    """
    return subprocess.run(
        argv,
        env={**child_environment(), **(environment or {})},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=timeout_s,
        check=False,
        process_group=0,
    )


def in_background(process: subprocess.Popen[bytes]) -> None:
    """Register a process for `quiet` to stop."""
    _background[:] = [*(p for p in _background if p.returncode is None), process]


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Stop background processes for the length of the block: timed work has the machine to itself."""
    held = list(_background)
    try:
        for process in held:
            process.send_signal(signal.SIGSTOP)
        yield
    finally:
        for process in held:
            process.send_signal(signal.SIGCONT)


def child_environment() -> dict[str, str]:
    """Return the environment variables of a process that calls `end_with_parent`."""
    return {**os.environ, _PARENT: str(os.getpid())}


def end_with_parent(parent: int | None = None) -> None:
    """End this process as soon as its parent ends, however that ends.

    Args:
        parent: the parent's pid; None for the process that called `run_child`. A process that was
            started otherwise, by hand say, goes on.
    """
    if parent is None:
        if _PARENT not in os.environ:
            return
        parent = int(os.environ[_PARENT])
    import ctypes

    ctypes.CDLL(None).prctl(_SET_DEATH_SIGNAL, signal.SIGKILL)
    if os.getppid() != parent:  # the parent ended before
        os._exit(1)

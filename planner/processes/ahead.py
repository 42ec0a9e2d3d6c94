"""Work done ahead by a process beside this one, whose result is a cache on disk.

Compiled code is made once per machine and takes many seconds. A process that begins as soon as it is
known to be needed makes it on another core, while this one reads the model and has it optimized.
"""

from __future__ import annotations

import atexit
import subprocess
import sys
import threading
from importlib import import_module

from planner.processes.children import child_environment, end_with_parent, in_background
from planner.processes.garbage import collect_seldom


class _Process:
    """A process that makes calls one after the other, and says so."""

    def __init__(self, calls: tuple[str, ...]) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", __name__, *calls],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=child_environment(),
            process_group=0,
        )
        self._done: set[str] = set()
        self._lock = threading.Lock()
        in_background(self.process)
        atexit.register(self._end)

    def finish(self, call: str) -> None:
        """Wait until a call is made, or the process has ended without."""
        assert self.process.stdout is not None
        with self._lock:
            while call not in self._done and (line := self.process.stdout.readline()):
                self._done.add(line.decode().strip())

    def _end(self) -> None:
        self.process.kill()
        self.process.communicate()


_begun: dict[str, _Process] = {}


def begin(*calls: str) -> None:
    """Make calls in a process beside this one, one after the other, but for those begun before.

    Args:
        calls: `module:function`, of no arguments.
    """
    new = tuple(call for call in calls if call not in _begun)
    if new:
        _begun.update(dict.fromkeys(new, _Process(new)))


def finish(call: str) -> None:
    """Wait for a call to end, if it was begun. Whether it went well is not asked: it is ahead only."""
    if call in _begun:
        _begun[call].finish(call)


if __name__ == "__main__":
    end_with_parent()
    collect_seldom()
    for call in sys.argv[1:]:
        module, function = call.split(":")
        getattr(import_module(module), function)()
        print(call, flush=True)

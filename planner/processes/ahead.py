"""Work done ahead by a process beside this one, whose result is a cache on disk.

Compiled code is made once per machine and takes many seconds. A process that begins as soon as it is
known to be needed makes it on another core, while this one reads the model and has it optimized.
"""

from __future__ import annotations

import atexit
import subprocess
import sys
from importlib import import_module

from planner.processes.children import child_environment, end_with_parent, in_background
from planner.processes.garbage import collect_seldom

_begun: dict[str, subprocess.Popen[bytes]] = {}


def begin(call: str) -> None:
    """Call a function in a process beside this one, unless that was begun before.

    Args:
        call: `module:function`, of no arguments.
    """
    if call not in _begun:
        _begun[call] = subprocess.Popen(
            [sys.executable, "-m", __name__, call],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=child_environment(),
            process_group=0,
        )
        in_background(_begun[call])
        atexit.register(_end, _begun[call])


def finish(call: str) -> None:
    """Wait for a call to end, if it was begun. Whether it went well is not asked: it is ahead only."""
    if call in _begun:
        _begun[call].wait()


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()


if __name__ == "__main__":
    end_with_parent()
    collect_seldom()
    module, function = sys.argv[1].split(":")
    getattr(import_module(module), function)()

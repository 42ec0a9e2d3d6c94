"""planner in a process of its own."""

from __future__ import annotations

import signal
import subprocess
import sys
from typing import Any

PLANNER = ("-c", "from planner.cli.main import run; run()")
"""Arguments of Python for the command line."""


def started(*arguments: str, **options: Any) -> subprocess.Popen[str]:
    """planner at work, its output to be read line by line."""
    return subprocess.Popen(
        [sys.executable, *PLANNER, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        bufsize=1,
        preexec_fn=_hears,  # noqa: PLW1509 (no thread of the tests holds a lock that it needs)
        **options,
    )


def _hears() -> None:
    """Hear the signals that a shell has its background jobs ignore."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)

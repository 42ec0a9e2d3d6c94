"""planner in a process of its own."""

from __future__ import annotations

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
        **options,
    )

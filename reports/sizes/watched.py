"""A process, its time, and the most memory that it and its children held."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

_EACH_S = 0.25


def watched(*arguments: str) -> dict[str, Any]:
    """Run a module; return the JSON that it prints last, with `wall_s` and `held_bytes`.

    Memory is the sum of the resident pages of the process and all that it started, looked at four times a
    second; pages that several share are counted for each.
    """
    began, most = time.monotonic(), 0
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as said:
        process = subprocess.Popen([sys.executable, "-m", *arguments], stdout=out, stderr=said)
        while process.poll() is None:
            most = max(most, sum(map(_resident, _family(process.pid))))
            time.sleep(_EACH_S)
        wall_s = time.monotonic() - began
        out.seek(0)
        said.seek(0)
        if process.returncode:
            lines = said.read().strip().splitlines() or [f"ended with {process.returncode}"]
            return {"failed": lines[-1], "wall_s": wall_s, "held_bytes": most}
        found = json.loads(out.read().strip().splitlines()[-1])
    return {**found, "wall_s": wall_s, "held_bytes": most}


def _family(pid: int) -> list[int]:
    """Return a process and all its descendants."""
    parents: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            fields = _read(f"/proc/{entry}/stat").rpartition(")")[2].split()
            if fields:
                parents.setdefault(int(fields[1]), []).append(int(entry))
    found = [pid]
    for one in found:
        found += parents.get(one, [])
    return found


def _resident(pid: int) -> int:
    fields = _read(f"/proc/{pid}/statm").split()
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE") if len(fields) > 1 else 0


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:  # the process has ended
        return ""

"""Whether a misuse ended as it should: what was said, and what was left."""

from __future__ import annotations

import hashlib
import os
import stat
from dataclasses import dataclass
from pathlib import Path

from tests.reliability.case import OK, VERIFICATION, Case

_ERROR = "planner: error: "
_NEVER = ("Traceback", "bug in planner", "RuntimeWarning")

Files = dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How one command ended.

    Attributes:
        code: the exit status; negative for a signal, None where it ran past its time.
    """

    code: int | None
    out: str
    err: str

    @property
    def message(self) -> str:
        """The error line without its head; the last line where there is none."""
        lines = [line for line in self.err.splitlines() if line.strip()]
        said = [line for line in lines if line.startswith(_ERROR)]
        return (said or lines or [""])[-1].removeprefix(_ERROR)


def files_in(folder: Path) -> Files:
    """Every file below `folder` by its path, with what it holds; links as links."""
    found: Files = {}
    for at, folders, names in os.walk(folder):
        for name in (*folders, *names):
            path = Path(at) / name
            mode = path.lstat().st_mode
            if stat.S_ISLNK(mode):
                held = f"link to {os.readlink(path)}"
            elif stat.S_ISREG(mode) and path.stat().st_size < 1 << 28:
                held = hashlib.sha256(path.read_bytes()).hexdigest()
            else:
                held = f"{stat.filemode(mode)} {path.lstat().st_size * stat.S_ISREG(mode)}"
            found[str(path.relative_to(folder))] = held
    return found


def faults(case: Case, ending: Ending, before: Files, after: Files, scratch: Path) -> list[str]:
    """What is not as it should be; nothing where the case holds."""
    if ending.code is None:
        return ["it did not end in time"]
    found = []
    if ending.code not in case.exits:
        found.append(f"exit code {ending.code}, not {' or '.join(map(str, case.exits))}")
    found += [f"it says {text!r}" for text in _NEVER if text in ending.err]
    if ending.code == OK:
        if _ERROR in ending.err:
            found.append("an error line, and exit code 0")
    else:
        lines = ending.err.splitlines()
        if [line.startswith(_ERROR) for line in lines] != [True]:
            found.append(f"{len(lines)} lines on stderr, not one error line")
        if ending.out and ending.code != VERIFICATION:
            found.append("something on stdout")
        found += [f"no word of {word!r}" for word in case.words if word not in ending.err]
    left = sorted(after.keys() - before.keys())
    if ending.code not in (OK, VERIFICATION) and left:
        found.append(f"left behind: {', '.join(left)}")
    found += [f"a temporary file is left: {name}" for name in left if ".tmp" in name]
    changed = sorted(name for name in before if after.get(name) != before[name])
    if changed:
        found.append(f"changed: {', '.join(changed)}")
    # ONNX Runtime leaves a file of its own there
    found += [f"left in the temporary folder: {p.name}" for p in scratch.glob("planner*")]
    return found

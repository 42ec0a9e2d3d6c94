"""One misuse: files, a command line, and what must come of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

OK, INTERNAL, USAGE, MODEL, INFEASIBLE, VERIFICATION, TIME = 0, 1, 2, 3, 4, 5, 6

Build = Callable[[Path], object]


def nothing(_folder: Path) -> None:
    """No files at all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One misuse.

    Attributes:
        room: what kind of thing is wrong: "graph", "plan", "options".
        wrong: what is wrong, in words.
        arguments: of `planner`, run in the folder that `build` filled.
        exits: the exit codes that are right.
        words: what the one error line must say.
        alone: not fit for a process that does other things too: it could hang or take much memory.
    """

    room: str
    wrong: str
    arguments: tuple[str, ...]
    build: Build = nothing
    exits: tuple[int, ...] = (MODEL,)
    words: tuple[str, ...] = ()
    alone: bool = False

    @property
    def command(self) -> str:
        """The command line, long arguments cut."""
        shown = (a if len(a) <= 60 else f"{a[:30]}… ({len(a)} characters)" for a in self.arguments)
        return " ".join(["planner", *shown])


OPTIMIZE = ("optimize", "model.onnx", "--budget", "60%", "--time-limit", "5", "-q")
ANALYZE = ("analyze", "model.onnx", "--time-limit", "5", "-q")

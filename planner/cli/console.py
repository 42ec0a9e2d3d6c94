"""The console of every command: verbosity, progress, the one JSON document, and error lines.

Data goes to stdout. Progress goes to stderr, and only where stderr is a terminal (or with -v).
"""

from __future__ import annotations

import contextlib
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from planner.cli.stages import Stages
from planner.errors import InfeasibleBudgetError, Interrupted, PlannerError
from planner.report.plain import printable
from planner.units import format_bytes, some_of, typed_size

Progress = Callable[[str], None]
T = TypeVar("T")
_MAX_BINDING = 5


@dataclass(slots=True)
class Verbosity:
    """The amount of output on stderr; -v and -q set it as they are parsed.

    Attributes:
        stage: the command's latest stage, shown or not.
    """

    verbose: bool = False
    quiet: bool = False
    stage: str = ""


verbosity = Verbosity()


def say(line: str) -> None:
    """Print one line on stderr."""
    print(line, file=sys.stderr, flush=True)


def note(line: str) -> None:
    """Print a remark on stderr, unless -q was given."""
    if not verbosity.quiet:
        say(f"planner: {printable(line)}")


def error_line(error: PlannerError, arguments: Sequence[str] = ()) -> str:
    """Return the one line that tells the user about `error`.

    Args:
        arguments: the command line, for the same command with a budget that works.
    """
    if isinstance(error, Interrupted):
        return "planner: interrupted; nothing was written"
    text = str(error)
    if isinstance(error, InfeasibleBudgetError):
        least = format_bytes(error.least_peak_bytes, up=True)
        if error.least_peak_bytes and least not in text:
            text += f"; the least feasible budget found is {least} ({error.least_peak_bytes} B)"
        if error.binding:
            resident = [f"{name} {format_bytes(size)}" for name, size in error.binding]
            text += f"; resident at the step that binds: {some_of(resident, _MAX_BINDING)}"
        if error.least_peak_bytes and (command := _within(arguments, error.least_peak_bytes)):
            text += f"; try: {command}"
    return f"planner: error: {printable(text)}"


def _within(arguments: Sequence[str], budget_bytes: int) -> str | None:
    """Return the command line with another `--budget`, the last of it; None if it has none."""
    words, size = ["planner", *arguments], typed_size(budget_bytes)
    for i, word in reversed(list(enumerate(words))):
        if word == "--budget" and i + 1 < len(words):
            return shlex.join([*words[: i + 1], size, *words[i + 2 :]])
        if word.startswith("--budget="):
            return shlex.join([*words[:i], f"--budget={size}", *words[i + 1 :]])
    return None


def emit_json(document: object) -> None:
    """Print a document as JSON, the only text on stdout."""
    from planner.files.structuring import json_text

    print(json_text(document), flush=True)


def emit(document: T, show: Callable[[T], object], *, json: bool) -> None:
    """Print a document: as JSON, or by `show`, which -q silences."""
    if json:
        emit_json(document)
    elif not verbosity.quiet:
        show(document)


@contextlib.contextmanager
def progress(limit_s: float | None = None) -> Iterator[Progress]:
    """Yield a function that notes the current stage, and shows it where the user wants that.

    A terminal shows one line that is kept up to date; -v prints a line for each stage.

    Args:
        limit_s: time limit of the search in seconds, from which the line shows the time left.
    """
    stages = Stages(limit_s=limit_s)
    if verbosity.quiet or not (verbosity.verbose or sys.stderr.isatty()):
        yield _noting(stages, lambda: None)
        return
    if verbosity.verbose:
        yield _noting(
            stages, lambda: say(f"planner: {stages.elapsed_s:.1f} s: {printable(stages.stage)}")
        )
        return
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    def line() -> Text:
        return Text(printable(stages.line()), no_wrap=True, overflow="ellipsis")

    # a thread draws it: the seconds run on while a stage says nothing
    with Live(
        console=Console(stderr=True), get_renderable=line, refresh_per_second=4, transient=True
    ):
        yield _noting(stages, lambda: None)


def _noting(stages: Stages, show: Callable[[], None]) -> Progress:
    def noted(message: str) -> None:
        verbosity.stage = message
        stages.note(message)
        show()

    return noted

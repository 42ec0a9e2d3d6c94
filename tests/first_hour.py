"""The tutorial, done as a newcomer would: `python -m tests.first_hour` writes `reports/first_hour.md`.

A fresh environment in a fresh folder, every file and command of `docs/tutorial.md`, in its order: some
minutes, fetching PyTorch included. `tests/test_first_hour.py` does so in the environment that is there.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
TUTORIAL = ROOT / "docs" / "tutorial.md"
PAGE = ROOT / "reports" / "first_hour.md"
SET_UP = ("python3 -m venv", "pip install")
"""How the commands begin that make an environment."""
LIMIT_S = 1800
_FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_NUMBER = re.compile(r"\d[\d.,]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """A file that the reader writes."""

    name: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """What the reader types, and the lines that the page shows of what is printed then."""

    line: str
    shown: tuple[str, ...]

    @property
    def is_set_up(self) -> bool:
        """Whether it makes the environment."""
        return self.line.startswith(SET_UP)


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """A command that was run: both streams as printed."""

    command: Command
    status: int
    seconds: float
    printed: str

    def missing(self) -> list[str]:
        """Lines of the page that were not printed, in that order; numbers may differ, `…` is any text."""
        printed = iter([_plain(line) for line in self.printed.splitlines()])
        return [line for line in self.command.shown if not any(_matches(line, p) for p in printed)]


def _plain(line: str) -> str:
    return _NUMBER.sub("0", " ".join(line.split()))


def _matches(shown: str, printed: str) -> bool:
    start, dots, _ = shown.partition("…")
    return printed.startswith(_plain(start)) if dots else printed == _plain(start)


def steps_of(page: str) -> Iterator[Written | Command]:
    """The files (`python` blocks that begin with `# NAME.py`) and commands (`console`) of a page."""
    for language, text in _FENCE.findall(page):
        if language == "python":
            name = text.partition("\n")[0].removeprefix("#").strip()
            yield Written(name=name, text=text)
        elif language == "console":
            for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
                line, *shown = part.splitlines()
                yield Command(line=line, shown=tuple(s for s in shown if s.strip()))


def run_all(page: str, folder: Path, environment: dict[str, str]) -> Iterator[Done]:
    """Do what the page says in a folder; what makes the environment is left out.

    Args:
        environment: variables besides this process's own.
    """
    for step in steps_of(page):
        if isinstance(step, Written):
            (folder / step.name).write_text(step.text, encoding="utf-8")
        elif not step.is_set_up:
            yield run(step, folder, environment)


def run(command: Command, folder: Path, environment: dict[str, str]) -> Done:
    """One command, by a shell."""
    start = time.perf_counter()
    done = subprocess.run(
        ["bash", "-c", command.line],
        cwd=folder,
        env=os.environ | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    return Done(
        command=command,
        status=done.returncode,
        seconds=time.perf_counter() - start,
        printed=done.stdout,
    )


def set_up(page: str, folder: Path, environment: dict[str, str]) -> Iterator[Done]:
    """Run the commands of a page that make its environment."""
    for step in steps_of(page):
        if isinstance(step, Command) and step.is_set_up:
            yield run(step, folder, environment)


def report(done: list[Done], folder: str) -> str:
    """The page.

    Args:
        folder: where all was done, which the page does not name.
    """
    total = sum(row.seconds for row in done)
    lines = [
        "# The first hour",
        "",
        "Written by `python -m tests.first_hour`: what `docs/tutorial.md` says, in a fresh folder and",
        f"environment, Python {platform.python_version()}, {os.cpu_count()} cores:",
        f"{len(done)} commands in {total / 60:.1f} minutes, fetching included.",
        "",
        "| command | s |",
        "|---|---:|",
        *[f"| `{row.command.line}` | {row.seconds:.1f} |" for row in done],
        "",
    ]
    for row in done:
        if row.printed.strip() and not row.command.is_set_up:
            printed = row.printed.replace(folder, "…").rstrip()
            lines += [f"## `{row.command.line}`", "", "```text", printed, "```", ""]
    return "\n".join(lines)


def main() -> int:
    """Do the tutorial afresh; status 1 where a command fails or prints something else."""
    parser = argparse.ArgumentParser(prog="python -m tests.first_hour", description=__doc__)
    parser.add_argument("-o", "--output", type=Path, default=PAGE)
    output = parser.parse_args().output
    page = TUTORIAL.read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory(prefix="planner-first-hour-") as name:
        folder = Path(name)
        quiet = {"PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_QUIET": "1", "PYTHONPATH": ""}
        path = f"{folder / '.venv' / 'bin'}{os.pathsep}{os.environ['PATH']}"
        variables = quiet | {"CHECKOUT": str(ROOT), "PATH": path}
        done: list[Done] = []
        for row in (*set_up(page, folder, variables), *run_all(page, folder, variables)):
            print(f"{row.seconds:7.1f} s  {row.command.line}", file=sys.stderr, flush=True)
            done.append(row)
    wrong = [row for row in done if row.status or row.missing()]
    for row in wrong:
        print(f"{row.command.line}: status {row.status}, {row.missing()}\n{row.printed}")
    output.write_text(report(done, name), encoding="utf-8")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

"""The one line that a terminal shows: stage, time, what is left of the search, the best plan so far."""

import io
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from planner.cli import console
from planner.cli.main import main
from planner.cli.stages import Stages, clock
from planner.order.reorder import peak_of
from planner.plan.problemfile import read_problem
from planner.portfolio.solve import solve
from planner.search.state import SearchSettings

ZOO = Path(__file__).parents[2] / "models" / "zoo"


class Clock:
    """Seconds that pass when told."""

    def __init__(self) -> None:
        self.at = 100.0

    def __call__(self) -> float:
        return self.at


def test_the_line_has_what_is_left_of_the_search_while_it_searches():
    now = Clock()
    stages = Stages(limit_s=60.0, now=now)
    now.at += 5
    stages.note("loading")
    assert stages.line() == "0:05 | loading"
    stages.note("searching for base orders")
    now.at += 20
    stages.note("solving: +8.30% time (lp-rounding), at least +1.00%")
    assert stages.line() == (
        "0:25 | at most 0:40 left of the search | best plan so far +8.30% time | "
        "solving: +8.30% time (lp-rounding), at least +1.00%"
    )
    now.at += 100
    assert "at most 0:00 left" in stages.line()
    stages.note("writing the rewritten model")
    assert stages.line() == "2:05 | writing the rewritten model"


def test_the_best_plan_is_the_one_that_adds_least_until_it_is_another_problem():
    stages = Stages()
    stages.note("solving: +2.00% time (a), at least +0.00%")
    stages.note("solving: +10.00% time (b), at least +0.00%")
    assert stages.best == "2.00%"
    stages.note("improving: +1.00% time, 1.020 full")  # does not fit yet
    assert stages.best == "2.00%"
    stages.note("improving: +1.50% time")
    assert stages.best == "1.50%"
    stages.note("searching for the least budget: 3.00 MiB")
    assert stages.best == ""


def test_what_the_search_says_is_understood(tmp_path):
    path = tmp_path / "problem.json"
    assert main(["problem", str(ZOO / "gpt.onnx"), "-o", str(path), "-q"]) == 0
    problem = read_problem(path)
    problem = replace(problem, capacity_bytes=int(0.75 * peak_of(problem, range(len(problem.ops)))))
    stages = Stages()
    solved = solve(problem, SearchSettings(limit_s=2, seed=0), progress=stages.note)
    assert solved.candidate is not None
    added = solved.candidate.replay.time_us / problem.base_duration_us - 1
    assert stages.best == f"{100 * added:.2f}%"


@pytest.mark.parametrize(("seconds", "text"), [(0, "0:00"), (75.9, "1:15"), (3661, "1:01:01")])
def test_the_clock(seconds, text):
    assert clock(seconds) == text


class Terminal(io.StringIO):
    """A stream that says that it is a terminal."""

    def isatty(self) -> bool:
        return True


def test_a_terminal_gets_one_line_and_a_pipe_none(monkeypatch):
    monkeypatch.setattr(console.verbosity, "verbose", False)
    monkeypatch.setattr(console.verbosity, "quiet", False)
    monkeypatch.setenv("TERM", "xterm")
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    with console.progress(60.0) as progress:
        progress("searching for base orders")
        progress("solving for 3 MiB\x1b[31m" + "x" * 500)
    shown = stream.getvalue()
    assert "left of the search" in shown and "\\x1b[31m" in shown
    assert "…" in shown  # cut to the terminal's width
    pipe = io.StringIO()
    monkeypatch.setattr(sys, "stderr", pipe)
    with console.progress(60.0) as progress:
        progress("solving")
    assert pipe.getvalue() == ""

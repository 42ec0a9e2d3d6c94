"""`planner analyze` at a terminal: what is known first is there first, and all of it once."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from planner import api
from planner.results import ModelView

MODEL = Path(__file__).parents[2] / "models" / "zoo" / "mlp_adamw.onnx"


@pytest.mark.skipif(sys.platform == "win32", reason="no pseudo-terminals")
def test_at_a_terminal_everything_is_printed_once() -> None:
    import pty

    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "planner", "analyze", str(MODEL), "--time-limit", "0.3"]
    with subprocess.Popen(command, stdout=theirs, stderr=subprocess.DEVNULL) as process:
        os.close(theirs)
        text = b""
        while part := _read(ours):
            text += part
    os.close(ours)
    assert process.returncode == 0
    lines = re.sub(r"\x1b\[[0-9;]*m", "", text.decode()).splitlines()
    heads = [line.split()[0] for line in lines[1:] if line[:1].isalpha()]
    assert heads[:3] == ["Peak", "Made", "Largest"]
    assert heads.count("Peak") == heads.count("Possible") == heads.count("Time") == 1


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 4096)
    except OSError:  # nobody writes there any more
        return b""


def test_the_model_as_it_is_comes_before_anything_is_searched_for() -> None:
    said: list[str] = []
    views: list[tuple[ModelView, str]] = []
    analysis = api.analyze(
        MODEL,
        time_limit_s=0.3,
        progress=said.append,
        on_model=lambda view: views.append((view, said[-1])),
    )
    ((view, stage),) = views
    assert view is analysis.default
    assert said.index(stage) < said.index("searching for a better order")


@pytest.mark.parametrize("name", ["mlp_adamw", "gpt", "resnet18"])
def test_the_least_budget_is_that_of_its_own_table(name: str) -> None:
    """It was above a row of the table, and rows at or above it had no plan."""
    analysis = api.analyze(MODEL.with_name(f"{name}.onnx"), time_limit_s=2, reproducible=True)
    least_bytes, preview = analysis.least_peak_bytes, analysis.budget_preview
    assert preview is not None
    assert analysis.least_peak_bound_bytes <= least_bytes <= analysis.default.timeline.peak_bytes
    points = preview.frontier.points
    for point in points:
        assert (point.plan is not None) or point.capacity_bytes < least_bytes
        if point.plan is not None:  # with room for the nodes that pin it
            assert least_bytes <= point.plan.peak_bytes + 8 * point.plan.actions + 1024
    assert {point.plan.order for point in points if point.plan} <= set(
        range(len(preview.frontier.orders))
    )

"""What each output says of one plan, side by side: `python -m reports.answers agree`."""

from __future__ import annotations

import contextlib
import html
import io
import json
import re
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from planner import optimize
from planner.cli.main import main
from planner.files.structuring import json_text
from planner.report.document.outcome import OptimizeDocument, optimize_document
from planner.report.terminal import wide_console
from planner.report.terminal.brief import print_optimize_brief
from planner.report.terminal.whole import print_optimize
from planner.units import format_bytes, format_duration, format_percent
from reports.shared import Row

_SAME = 1e-9
"""The relative difference of two sums of the same durations, added up in another order."""


class Run(NamedTuple):
    """Everything that one call wrote, and what other commands say of its plan."""

    payload: dict[str, Any]
    plan: dict[str, Any]
    page: str
    brief: str
    whole: str
    difference: dict[str, Any]
    explained: dict[str, Any]


def everything(model: Path, budget: str, folder: Path, *, time_limit_s: float = 1.0) -> Run | None:
    """Plan a model with measured times, and read all outputs.

    None where the plan recomputes and moves nothing: `planner explain` is asked about such a tensor.
    """
    page, plan = folder / "page.html", folder / "a.plan.json"
    files: dict[str, Any] = {"output": folder / "a.onnx", "plan_path": plan, "report_path": page}
    how: dict[str, Any] = {"calibrate": True, "time_limit_s": time_limit_s, "verify": False}
    result = optimize(model, budget=budget, seed=1, **files, **how)
    document = optimize_document(result)
    text = re.sub(r"<(script|style).*?</\1>", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    written = json.loads(plan.read_text(encoding="utf-8"))
    if not written["decisions"]:
        return None
    tensor = written["decisions"][0]["tensor"]
    return Run(
        payload=json.loads(json_text(document)),
        plan=written,
        page=" ".join(html.unescape(re.sub("<[^>]+>", " ", text)).split()),
        brief=_printed(print_optimize_brief, document),
        whole=_printed(print_optimize, document),
        difference=_answer("diff", str(plan), str(plan)),
        explained=_answer("explain", str(model), str(plan), "--tensor", tensor),
    )


def _answer(*arguments: str) -> dict[str, Any]:
    with contextlib.redirect_stdout(io.StringIO()) as out:
        if main([*arguments, "--json", "-q"]):
            raise RuntimeError(f"planner {' '.join(arguments)} failed")
    return json.loads(out.getvalue())


def _printed(show: Callable[..., None], document: OptimizeDocument) -> str:
    console = wide_console()
    with console.capture() as capture:
        show(document, console)
    return " ".join(capture.get().split())


def differing(run: Run) -> tuple[int, list[str]]:
    """Return how many statements on the plan were compared, and those that differ from the plan file's
    or, for held bytes, from the JSON document's."""
    head, plan, diff = run.payload["headline"], run.plan, run.difference["planned"]
    step_us = plan["planned"]["time_us"] + plan["planned"]["cache_us"]
    ratio, peak = step_us / plan["baseline"]["time_us"], plan["planned"]["peak_bytes"]
    numbers = {
        "step, JSON": (head["time_after_us"], step_us),
        "step, diff": (diff["step_us"]["a"], step_us),
        "ratio, JSON": (head["predicted_time_ratio"], ratio),
        "peak, JSON": (head["peak_after_bytes"], peak),
        "peak, JSON's timeline": (run.payload["after"]["peak_bytes"], peak),
        "peak, diff": (diff["peak_bytes"]["a"], peak),
        "budget, JSON": (head["budget_bytes"], plan["budget_bytes"]),
        "budget, explain": (run.explained["budget_bytes"], plan["budget_bytes"]),
        "bytes, explain": (run.explained["bytes"], plan["decisions"][0]["bytes"]),
    }
    texts = {
        "step": format_duration(step_us),
        "ratio": f"{ratio:.3f}",
        "peak": format_bytes(peak),
        "held": format_bytes(head["held_bytes"]),
        "held by a default session": format_bytes(head["default_held_bytes"]),
    }
    places = {"page": run.page, "outcome": run.brief, "outcome -v": run.whole}
    off = [name for name, (said, known) in numbers.items() if abs(said - known) > _SAME * known]
    off += [
        f"{what}, {where}"
        for where, page in places.items()
        for what, text in texts.items()
        if text not in page
    ]
    others = list(_of_other_budgets(run, ratio))
    off += [name for name, holds in others if not holds]
    return len(numbers) + len(places) * len(texts) + len(others), off


def _of_other_budgets(run: Run, ratio: float) -> Iterator[tuple[str, bool]]:
    """Yield what the table of budgets and the next steps say of the plan's ratio, and if it holds."""
    points = run.payload["budget_preview"]["frontier"]["points"]
    (here,) = (p for p in points if p["budget_bytes"] == run.plan["budget_bytes"])
    added = max(0.0, ratio - 1)
    if here["peak_bytes"] != run.plan["planned"]["peak_bytes"]:
        added = min(added, here["slowdown"])  # of a plan for less, which may be quicker
    yield "ratio, other budgets", abs(here["slowdown"] - added) <= _SAME
    known = {format_percent(added - p["slowdown"]) for p in points if p["slowdown"] is not None}
    for saved in re.findall(r"would save ([0-9.]+%)", str(run.payload["next_steps"])):
        yield "ratio, next", saved in known


def agree_row(model: Path, budget: str) -> Row | None:
    """Plan one model at one budget, and compare all outputs; None where the plan changes nothing."""
    with tempfile.TemporaryDirectory() as folder:
        run = everything(model, budget, Path(folder))
    if run is None:
        return None
    compared, off = differing(run)
    return {"model": model.stem, "budget": budget, "compared": compared, "differ": off}

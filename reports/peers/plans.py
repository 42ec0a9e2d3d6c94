"""The same step through planner: exported, planned within a peer's peak, verified, its bytes measured."""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from planner import export_training_graph, optimize
from planner.choices import FuseMode, SplitMode
from planner.errors import InfeasibleBudgetError, PlannerError
from planner.results import OptimizeResult
from planner.results.verification import Verification
from planner.targets import Device
from reports.peers.networks import Network, drawn
from reports.peers.runtime import cpu_peak_bytes

ABOVE_LEAST = 1.02
"""Factor on the least peak found, for the budget where no plan fits."""

Row = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanSettings:
    """The settings that all plans of a network share.

    Attributes:
        model, feeds: the exported graph, and an .npz with what it is fed.
        hardware: planner's profile; on the CPU times are measured (`calibrate`).
        limit_s: of each search.
        fuse: element operations of a plan (`--fuse`).
    """

    model: Path
    feeds: Path
    device: Device
    hardware: str
    threads: int
    limit_s: float
    fuse: FuseMode = "none"


def export(network: Network, model: Path) -> Row:
    """Write the training graph: loss and all gradients, no optimizer."""
    step = drawn(network)
    start = time.monotonic()
    graph = export_training_graph(
        step.module, step.input, step.loss, targets={step.names[1]: step.target}
    )
    graph.save(model)
    return {"nodes": len(graph.model.graph.node), "export_s": time.monotonic() - start}


def planned(settings: PlanSettings, budget_bytes: int, output: Path) -> Row:
    """A plan within the budget. Where none fits, the row says what the least peak found is, and has a
    plan with operations in chunks of rows (`--split auto`), or where there is none either, a plan just
    above the least peak (`is_above`); `refused` says why there is none at all."""
    row: Row = {"asked_bytes": budget_bytes}
    began = time.monotonic()
    try:
        row |= _at_or_above(settings, budget_bytes, output)
    except PlannerError as error:
        row["refused"] = str(error)
    return {**row, "optimize_s": time.monotonic() - began}


def _at_or_above(settings: PlanSettings, budget_bytes: int, output: Path) -> Row:
    try:
        return _within(settings, budget_bytes, "none", output)
    except InfeasibleBudgetError as error:
        whole = error
    found: Row = {
        "least_whole_bytes": whole.least_peak_bytes,
        "least_whole_bound_bytes": whole.bound_bytes,
    }
    if settings.device == "cpu":
        with contextlib.suppress(PlannerError):
            return {**found, **_within(settings, budget_bytes, "auto", output)}
    above = int(whole.least_peak_bytes * ABOVE_LEAST)
    return {**found, "is_above": True, **_within(settings, above, "none", output)}


def _within(settings: PlanSettings, budget_bytes: int, split: SplitMode, output: Path) -> Row:
    result = _optimized(settings, budget_bytes, split, output)
    check = result.verification
    assert check is not None
    if settings.device == "cpu":
        measured = cpu_peak_bytes(output, settings.feeds, settings.threads)
    else:
        measured = device_peak_bytes(check, "rewritten")
    return {**_figures(result), **measured}


def device_peak_bytes(check: Verification, model: str) -> dict[str, int]:
    """Of a device with a memory of its own: `peak`: bytes of tensors, replayed from the executed order;
    `with_scratch`: what its arena was seen to hold, where it says."""
    memory = next(m for m in check.memory if m.model == model and m.options != "default")
    row = {"peak": memory.live_bytes}
    return row if memory.held_bytes is None else {**row, "with_scratch": memory.held_bytes}


def _optimized(
    settings: PlanSettings, budget: int, split: SplitMode, output: Path
) -> OptimizeResult:
    on_cpu = settings.device == "cpu"
    return optimize(
        settings.model,
        budget=f"{budget}B",
        output=output,
        hardware=settings.hardware,
        calibrate=on_cpu,
        split=split,
        fuse=settings.fuse,
        swap="none" if on_cpu else "auto",
        device=settings.device,
        inputs=settings.feeds,
        feeds="auto" if on_cpu else "device",
        time_limit_s=settings.limit_s,
        force=True,
    )


def _figures(result: OptimizeResult) -> Row:
    plan, check = result.plan, result.verification
    assert check is not None
    return {
        "budget_bytes": plan.budget_bytes,
        "baseline_bytes": plan.baseline.peak_bytes,
        "predicted_bytes": plan.planned.peak_bytes,
        "predicted_ratio": plan.planned.step_us / plan.baseline.time_us,
        "recomputed_ops": plan.planned.recomputed_ops,
        "unchanged": plan.unchanged,
        "regions": sum(map(len, plan.split)),
        "fused_nodes": plan.fused_nodes,
        "numbers": plan.numbers,
        "gap": plan.gap,
        "passed": check.passed,
        "failures": list(check.failures),
        "identical": sum(output.identical for output in check.outputs),
        "outputs": len(check.outputs),
    }

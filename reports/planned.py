"""A model planned within the first of a few budgets that a plan fits, and verified: a row of a report."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from planner import optimize
from planner.choices import BudgetOf
from planner.errors import InfeasibleBudgetError, PlannerError
from planner.report.document.headline import held
from planner.results import OptimizeResult
from reports.shared import Row

MORE, FEASIBLE = 1.02, 1.03
"""Factors on the budget that an error names: the observed need of one plan; the next search may do
worse."""

BUDGETS = ("70%", "85%")
"""Of the model's own peak: the second where no plan is held within the first, as in the smallest
networks; where none is within that either, what the error names."""


def feasible(model: Path, budget: str, **options: Any) -> OptimizeResult:
    """Plan `model` within the budget, or where that has no plan within a little more than the least that
    has one, since a search found it, and the next search may do worse."""
    try:
        return optimize(model, budget=budget, **options)
    except InfeasibleBudgetError as error:
        return feasible(model, f"{int(FEASIBLE * (error.least_peak_bytes or 0))}B", **options)


def planned(
    model: Path,
    feeds: Mapping[str, np.ndarray] | None,
    time_limit_s: float,
    budget_of: BudgetOf = "held",
    budgets: Sequence[str] = BUDGETS,
    **options: Any,
) -> Row:
    """Plan `model` for the CPU and run both files; what fails is in the row, by its own message.

    Args:
        feeds: every input of the model; None draws them.
        time_limit_s: for each search.
        budgets: the first that is met counts; where none is, what the error of the last names.
        options: more of `planner.optimize`.
    """
    start = time.monotonic()
    result, budget, why = None, "", ""
    tried = [*budgets]
    with tempfile.TemporaryDirectory() as folder:
        inputs = None if feeds is None else Path(folder) / "feeds.npz"
        if inputs is not None and feeds is not None:
            np.savez(inputs, allow_pickle=False, **feeds)
        for budget in tried:
            try:
                result = optimize(
                    model,
                    budget=budget,
                    budget_of=budget_of,
                    output=Path(folder) / "planned.onnx",
                    inputs=inputs,
                    **options,
                    time_limit_s=time_limit_s,
                )
                break
            except InfeasibleBudgetError as error:
                why = str(error)
                if budget == budgets[-1] and error.least_peak_bytes:
                    tried.append(f"{int(MORE * error.least_peak_bytes)}B")
            except PlannerError as error:
                said, _, _ = str(error).partition("; the files are left")
                return {"plan": "failed", "why": said}
    if result is None:
        return {"plan": "infeasible", "why": why}
    return {"budget": budget, "optimize_s": time.monotonic() - start, **_figures(result)}


def _figures(result: OptimizeResult) -> Row:
    """What a row keeps of a result."""
    verification = result.verification
    assert verification is not None
    bits = verification.default_bits
    assert bits is not None
    return {
        "plan": "verified" if verification.passed else "failed",
        "outputs": len(verification.outputs),
        "identical": sum(output.identical for output in verification.outputs),
        "plain_outputs": bits.compared,
        "plain_differ": list(bits.differ),
        "plain_unstable": list(bits.unstable),
        "peak_bytes": result.plan.baseline.peak_bytes,
        "planned_bytes": result.plan.planned.peak_bytes,
        "ratio": verification.time.ratio if verification.time else None,
        "ort_version": verification.ort_version,
        "added": result.plan.planned.time_us / result.plan.baseline.time_us - 1,
        "budget_bytes": result.plan.budget_bytes,
        "budget_of": result.plan.budget_of,
        **msgspec.to_builtins(held(result)),
    }

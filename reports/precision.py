"""Saved tensors in half: peaks, times, and what that does to each gradient.

    python -m reports.precision

For each sample of `models/zoo`, within one budget: the plan with exact levers alone (order and
recompute), the one that may store saved tensors in half, too, and the ones in which casts are the only
lever besides order. All are verified on ONNX Runtime. Rows go to `precision.json` beside this file,
`precision.md` is written from them. About five minutes on one core.
"""

from __future__ import annotations

import json
import platform
import statistics
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import onnxruntime as ort

from planner import optimize
from planner.choices import CastSaved
from planner.errors import InfeasibleBudgetError

FOLDER = Path(__file__).parent
RESULT, PAGE = FOLDER / "precision.json", FOLDER / "precision.md"
ZOO = FOLDER.parent / "models" / "zoo"
MIB = 2**20
LIMIT_S = 12.0

BUDGETS: Mapping[str, tuple[str, ...]] = {
    "gpt": ("65%", "30%"),
    "resnet18": ("65%", "47%"),
    "mlp_adamw": ("82%", "70%"),
}
"""For each network one budget that casts alone meet, and one near the least peak."""

LEVERS: Mapping[str, tuple[CastSaved, bool]] = {
    "exact: recompute": ("none", True),
    "recompute or bf16": ("bf16", True),
    "bf16 alone": ("bf16", False),
    "fp16 alone": ("fp16", False),
}
"""What a plan may do besides order: (--cast-saved, recompute)."""


def row(network: str, budget: str, levers: str, folder: Path) -> dict[str, Any]:
    """One plan, verified."""
    kind, recompute = LEVERS[levers]
    found: dict[str, Any] = {"network": network, "budget": budget, "levers": levers}
    try:
        result = optimize(
            ZOO / f"{network}.onnx",
            budget=budget,
            output=folder / "planned.onnx",
            swap="none",
            recompute=recompute,
            cast_saved=kind,
            time_limit_s=LIMIT_S,
            force=True,
        )
    except InfeasibleBudgetError as error:
        return {**found, "least_bytes": error.least_peak_bytes}
    plan, check = result.plan, result.verification
    assert check is not None and check.time is not None
    floats = [o for o in check.outputs if o.dtype.startswith("float") and o.name != "loss"]
    live = next(m for m in check.memory if m.model == "rewritten" and m.options == "recommended")
    worst = max(floats, key=lambda o: o.rms_rel_diff)
    return {
        **found,
        "baseline_bytes": plan.baseline.peak_bytes,
        "peak_bytes": plan.planned.peak_bytes,
        "live_bytes": live.live_bytes,
        "predicted_ratio": plan.planned.time_us / plan.baseline.time_us,
        "measured_ratio": check.time.ratio,
        "recomputed_ops": plan.planned.recomputed_ops,
        "halved_tensors": plan.planned.halved_tensors,
        "halved_bytes": plan.planned.halved_bytes,
        "numbers": plan.numbers,
        "passed": check.passed,
        "levels": [order.level for order in check.orders if order.equal],
        "loss_identical": next(o.identical for o in check.outputs if o.name == "loss"),
        "outputs": len(floats),
        "identical": sum(o.identical for o in floats),
        "median_rms": statistics.median(o.rms_rel_diff for o in floats),
        "worst_rms": worst.rms_rel_diff,
        "worst": worst.name,
        "gradients": {o.name: o.rms_rel_diff for o in floats},
        "magnitudes": [n for n in check.notes if "largest magnitude" in n],
    }


_HEAD = """# Saved tensors in half

onnxruntime {version}, {machine}; written by `python -m reports.precision`, {limit:g} s a search. Peaks
in MiB.

Plans without swaps within one budget. *Exact* plans may run operations again; *bf16* and *fp16* may
store what is saved from forward to backward in half (`--cast-saved`): where recompute is allowed too,
only where that is quicker; *alone*, besides order. Times are ratios to the original model's, predicted
by the roofline of the profile `cpu` and measured here (noisy). *In half*: tensors stored so, and their
MiB so. *RMS*: root mean square of the difference to the original's output by that of the output, over
all gradients, new values and statistics.
"""

_COLUMNS = (
    "network",
    "budget",
    "levers",
    "peak",
    "time, predicted",
    "measured",
    "runs again",
    "in half",
    "bit-identical",
    "RMS, median",
    "worst",
    "in",
)

_FOOT = """
In {passed} of {ran} rows the verification passed, in {loss} the loss has the original's bits, in
{order} the executed order is the planned one, casts included, at the levels extended and all, and in
{exact} ONNX Runtime's live bytes are the predicted ones. Where the plan with recompute or bf16 has
nothing in half, no plan with casts was found that is quicker by 1%: running cheap operations again
costs less than two casts.

Magnitudes, as each verification says:
"""


def markdown(rows: list[dict[str, Any]]) -> str:
    """The page."""
    ran = [r for r in rows if "peak_bytes" in r]
    head = _HEAD.format(version=ort.__version__, machine=platform.machine(), limit=LIMIT_S)
    foot = _FOOT.format(
        passed=sum(r["passed"] for r in ran),
        ran=len(ran),
        loss=sum(r["loss_identical"] for r in ran),
        order=sum(len(r["levels"]) == 2 for r in ran),
        exact=sum(r["live_bytes"] == r["peak_bytes"] for r in ran),
    )
    said = dict.fromkeys(f"- {r['network']}: {text}" for r in ran for text in r["magnitudes"])
    table = [_COLUMNS, ("---",) * len(_COLUMNS), *(_cells(r) for r in rows)]
    lines = [f"| {' | '.join(cells)} |" for cells in table]
    return "\n".join([head, *lines, foot, *said, ""])


def _cells(r: dict[str, Any]) -> tuple[str, ...]:
    start = (r["network"], r["budget"], r["levers"])
    if "peak_bytes" not in r:
        least = f" (least found: {r['least_bytes'] / MIB:.2f})" if r["least_bytes"] else ""
        return (*start, f"no plan{least}", *("",) * 8)
    halves, count = "–", r["halved_tensors"]
    if count:
        halves = f"{count} ({r['halved_bytes'] / MIB:.2f})"
    return (
        *start,
        f"{r['baseline_bytes'] / MIB:.2f} -> {r['peak_bytes'] / MIB:.2f}",
        f"{r['predicted_ratio']:.3f}",
        f"{r['measured_ratio']:.3f}",
        str(r["recomputed_ops"]),
        halves,
        f"{r['identical']} of {r['outputs']}",
        f"{r['median_rms']:.2g}",
        f"{r['worst_rms']:.2g}",
        r["worst"] if r["identical"] < r["outputs"] else "–",
    )


def main() -> int:
    """Measure all rows and write both files."""
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        for network, budgets in BUDGETS.items():
            for budget in budgets:
                for levers in LEVERS:
                    rows.append(row(network, budget, levers, Path(folder)))
                    print({k: v for k, v in rows[-1].items() if k != "gradients"}, flush=True)
                    RESULT.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    PAGE.write_text(markdown(rows), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

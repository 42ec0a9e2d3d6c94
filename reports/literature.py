"""TFLMS's figures beside planner's: `python -m reports.literature`, half an hour.

Le et al. 2019 (arXiv:1807.02037): how much larger a batch or an image fits the same budget. Everything
is by plan: nothing is run. Rows go to `reports/literature.json`, the page to `reports/literature.md`.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from planner import optimize
from planner.errors import InfeasibleBudgetError
from planner.formulate import NO_LIMIT
from planner.pipeline.prepare.prepared import Prepared, prepare
from planner.pipeline.prepare.settings import settings_of
from planner.pipeline.solve.orders import base_orders, least_found_peak
from planner.request import Costs, Request
from reports.shared import FOLDER, Row, line, program, write_rows

RESULT, PAGE = FOLDER / "literature.json", FOLDER / "literature.md"
_MB = 1e6
BUDGETS_BYTES = (16_000_000_000, 32_000_000_000)
HARDWARE = "v100"
PROBE_S, PLAN_S = 2.0, 60.0

_INTRODUCTION = """# TFLMS: Le et al. 2019

Written by `python -m reports.literature`. Everything is by plan: predicted, nothing was run. MB are 10⁶
bytes, as the paper has them.

T. Le, H. Imai, Y. Negishi, K. Kawachiya: *TFLMS: Large Model Support in TensorFlow by Graph
Rewriting*, arXiv:1807.02037; what they published is from the abstract. Here: the largest size whose
peak is within 16 or 32 GB as the model is, and with a plan (recompute and swaps), for CUDA, not run, with
the times of the profile `v100` (copies over PCIe 3). Workspace of cuDNN is not known and not counted.
ResNet-50 has 224×224 images and momentum SGD; 3D U-Net (Çiçek et al. 2016, 4 channels in, 3 classes)
batch 1 and AdamW.

The budget bounds live bytes, as the paper counts; a search takes {limit:.0f} s. *Beside*: the step by
the original's where copies run beside the operations (`--copies overlapped`); *between*: where they run
on the stream of the operations, as ONNX Runtime has its own. *Run again*, *swapped* and *MB*, copied out
and in, are of the plan beside. What is planned with copies between would take no longer with copies
beside: where *beside* is dearer, its search has not found that plan.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """A network, with the size that grows until it no longer fits.

    Attributes:
        net, more: the recipe of `models.recipes`, and options of it.
        option: what grows, in steps of `step`; `power`: with which power of it memory grows.
        sizes: two sizes to measure, from which others are estimated.
        said: the published figure, from the abstract of arXiv:1807.02037.
        grown: how many times as large the published batch is; `size`: the published size itself.
    """

    net: str
    option: str
    step: int
    power: int
    sizes: tuple[int, int]
    more: tuple[str, ...]
    said: str
    grown: float = 1.0
    size: int = 0

    def published(self, without: int) -> int:
        """Return the published size, or the published multiple of the size that fits without a plan."""
        return self.size or int(self.grown * without) // self.step * self.step


NETWORKS = {
    "ResNet-50": Network(
        net="resnet50", option="--batch", step=8, power=1, sizes=(32, 64),
        more=("--optimizer", "momentum"), said="a batch 4.7 times as large", grown=4.7,
    ),
    "3D U-Net": Network(
        net="unet3d", option="--image-size", step=8, power=3, sizes=(64, 128),
        more=("--optimizer", "adamw"), said="a batch twice as large; images of 192³", size=192,
    ),
}  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, and write both files."""
    program("reports.literature", __doc__).parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        rows = [_row(name, size, Path(folder)) for name in NETWORKS for size in BUDGETS_BYTES]
    write_rows(RESULT, rows)
    PAGE.write_text(markdown(rows), encoding="utf-8")
    return 0


def _row(name: str, budget_bytes: int, folder: Path) -> Row:
    """Return the row of a network and a budget."""
    network = NETWORKS[name]

    def path(size: int) -> Path:
        return built(network.net, folder, *network.more, network.option, str(size))

    def as_it_is(size: int) -> int:
        return on_gpu(path(size)).baseline.peak_bytes

    def planned(size: int) -> int:
        prepared = on_gpu(path(size))
        orders = base_orders(prepared, time_limit_s=PROBE_S)[:3]
        settings = settings_of(prepared)
        return min(NO_LIMIT, least_found_peak(prepared, settings, orders, time_limit_s=PROBE_S))

    without = _largest(as_it_is, network, budget_bytes)
    most = _largest(planned, network, budget_bytes)
    while not any((found := _plans(path(most), budget_bytes)).values()):
        most -= network.step
    published = network.published(without)
    return {
        "network": name,
        "budget_bytes": budget_bytes,
        "limit_s": PLAN_S,
        "option": network.option.removeprefix("--"),
        "power": network.power,
        "without": without,
        "published": network.said,
        "sizes": [
            {"size": published, "is_published": True, **_plans(path(published), budget_bytes)},
            {"size": most, "is_published": False, **found},
        ],
    }


def _plans(path: Path, budget_bytes: int) -> Row:
    """Return plans within the budget, by how copies run; {} if none is found."""
    return {copies: _plan(path, budget_bytes, copies) for copies in ("overlapped", "serial")}


def _plan(path: Path, budget_bytes: int, copies: Literal["overlapped", "serial"]) -> Row:
    try:
        result = optimize(
            path,
            budget=f"{budget_bytes}B",
            budget_of="live",  # as papers count
            device="cuda",
            hardware=HARDWARE,
            copies=copies,
            time_limit_s=PLAN_S,
            dry_run=True,
        )
    except InfeasibleBudgetError:
        return {}
    cost = result.plan.planned
    return {
        "peak_bytes": cost.peak_bytes,
        "baseline_bytes": result.plan.baseline.peak_bytes,
        "ratio": cost.time_us / result.plan.baseline.time_us,
        "recomputed_ops": cost.recomputed_ops,
        "swapped_tensors": cost.swapped_tensors,
        "copied_bytes": cost.swap_out_bytes + cost.swap_in_bytes,
    }


def _largest(peak_of: Callable[[int], int], network: Network, budget_bytes: int) -> int:
    """Find the largest size within the budget: estimate it from two sizes, then check it."""
    small, large = network.sizes
    low, high = peak_of(small), peak_of(large)
    per = (high - low) / (large**network.power - small**network.power)
    room = large**network.power + (budget_bytes - high) / per
    size = int(room ** (1 / network.power)) // network.step * network.step
    while peak_of(size) > budget_bytes:
        size -= network.step
    return size


def built(net: str, folder: Path, *sizes: str) -> Path:
    """Build a network of `models.recipes`, and return its file."""
    from models.build import main as build

    path = folder / f"{'_'.join([net, *(s.lstrip('-') for s in sizes)])}.onnx"
    if not path.exists() and build([net, "-o", str(path), *sizes]):
        raise SystemExit(f"{net} was not built")
    return path


def on_gpu(path: Path) -> Prepared:
    """Prepare a model for CUDA, without a run."""
    return prepare(Request(model=path, device="cuda", costs=Costs(hardware=HARDWARE)))


def markdown(rows: Sequence[Row]) -> str:
    """Return the page."""
    cells: list[tuple[str, ...]] = []
    for r in rows:
        start = (r["network"], f"{r['budget_bytes'] / 1e9:.0f}", r["option"], str(r["without"]))
        for size in r["sizes"]:
            grown = (size["size"] / r["without"]) ** r["power"]
            why = r["published"] if size["is_published"] else "the largest"
            cells.append((*start, str(size["size"]), f"{grown:.1f}", why, *_cells(size)))
    titles = ("network", "GB", "what grows", "as it is", "size", "times the elements", "", "beside")
    titles = (*titles, "between", "run again", "swapped", "MB")
    lines = "\n".join(line(*row) for row in (titles, ("---",) * len(titles), *cells))
    return f"{_INTRODUCTION.format(limit=rows[0]['limit_s'])}\n{lines}\n"


def _cells(size: Row) -> tuple[str, ...]:
    beside, between = size["overlapped"], size["serial"]
    ratios = [f"{plan['ratio']:.2f}" if plan else "none found" for plan in (beside, between)]
    if not beside:
        return (*ratios, "", "", "")
    counts = ("recomputed_ops", "swapped_tensors")
    return (*ratios, *(f"{beside[c]:,}" for c in counts), f"{beside['copied_bytes'] / _MB:,.0f}")


if __name__ == "__main__":
    sys.exit(main())

"""Le et al. 2019 (arXiv:1807.02037): how much larger a batch or image fits the same budget, by plan."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from planner import optimize
from planner.errors import InfeasibleBudgetError
from reports.literature.networks import built, least_on_gpu, on_gpu

BUDGETS_BYTES = (16_000_000_000, 32_000_000_000)
HARDWARE = "v100"
PROBE_S, PLAN_S = 2.0, 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """A network, with the size that grows until it no longer fits.

    Attributes:
        net, more: the recipe of `models.recipes`, and options of it.
        option: what grows, in steps of `step`; `power`: with which power of it memory grows.
        sizes: two sizes to measure, from which others are estimated.
        grown: how many times as large the published batch is; `size`: the published size itself.
    """

    net: str
    option: str
    step: int
    power: int
    sizes: tuple[int, int]
    more: tuple[str, ...]
    grown: float = 1.0
    size: int = 0

    def published(self, without: int) -> int:
        """Return the published size, or the published multiple of the size that fits without a plan."""
        return self.size or int(self.grown * without) // self.step * self.step


NETWORKS = {
    "ResNet-50": Network(
        net="resnet50", option="--batch", step=8, power=1, sizes=(32, 64),
        more=("--optimizer", "momentum"), grown=4.7,
    ),
    "3D U-Net": Network(
        net="unet3d", option="--image-size", step=8, power=3, sizes=(64, 128),
        more=("--optimizer", "adamw"), size=192,
    ),
}  # fmt: skip

PUBLISHED = {
    "ResNet-50": "a batch 4.7 times as large",
    "3D U-Net": "a batch twice as large; images of 192³",
}
"""The published figures, from the abstract of arXiv:1807.02037."""


def rows(folder: Path) -> list[dict[str, Any]]:
    """Return a row for each network and budget."""
    return [_row(name, size, folder) for name in NETWORKS for size in BUDGETS_BYTES]


def _row(name: str, budget_bytes: int, folder: Path) -> dict[str, Any]:
    network = NETWORKS[name]

    def path(size: int) -> Path:
        return built(network.net, folder, *network.more, network.option, str(size))

    def as_it_is(size: int) -> int:
        return on_gpu(path(size), HARDWARE).baseline.peak_bytes

    def planned(size: int) -> int:
        return least_on_gpu(on_gpu(path(size), HARDWARE), PROBE_S)

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
        "published": PUBLISHED[name],
        "sizes": [
            {"size": published, "is_published": True, **_plans(path(published), budget_bytes)},
            {"size": most, "is_published": False, **found},
        ],
    }


def _plans(path: Path, budget_bytes: int) -> dict[str, Any]:
    """Return plans within the budget, by how copies run; {} if none is found."""
    return {copies: _plan(path, budget_bytes, copies) for copies in ("overlapped", "serial")}


def _plan(path: Path, budget_bytes: int, copies: Literal["overlapped", "serial"]) -> dict[str, Any]:
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

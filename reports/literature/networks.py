"""The networks of the papers, built as `models.build` does, and what planner says of them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from planner.formulate import NO_LIMIT
from planner.pipeline.levers.half.halves import ranked
from planner.pipeline.levers.half.halving import halved
from planner.pipeline.levers.host.hosting import everything_on_host
from planner.pipeline.prepare.prepared import Prepared, prepare
from planner.pipeline.prepare.settings import Settings, settings_of
from planner.pipeline.solve.orders import base_orders, formulate_in, least_found_peak
from planner.portfolio.min_peak import min_peak_of
from planner.report.document.views import taxonomy_of
from planner.request import Costs, Levers, Request


def built(net: str, folder: Path, *sizes: str) -> Path:
    """Build a network of `models.recipes`, and return its file."""
    from models.build import main as build

    path = folder / f"{'_'.join([net, *(s.lstrip('-') for s in sizes)])}.onnx"
    if not path.exists() and build([net, "-o", str(path), *sizes]):
        raise SystemExit(f"{net} was not built")
    return path


def baseline(path: Path) -> dict[str, Any]:
    """Return the peak of the original model, split into the parts that the literature counts."""
    found = prepare(Request(model=path), to_rewrite=False).baseline
    line = found.timeline
    at = {c: int(part[line.peak_step]) for c, part in line.by_category.items()}
    return {"peak_bytes": found.peak_bytes, "split": taxonomy_of(at)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """The levers that a plan may use besides the order.

    Attributes:
        swap: tensors may be copied to the host; `resident`: inputs and outputs live there.
        in_half: all saved tensors are stored in bf16.
    """

    name: str
    recompute: bool = True
    swap: bool = False
    resident: bool = False
    in_half: bool = False


def least(path: Path, way: Way, limit_s: float) -> dict[str, Any]:
    """Search for `limit_s` seconds; return the least predicted peak, and its time as a ratio.

    Buffers are rounded up as ONNX Runtime's arena does; nothing is lowered or run.
    """
    levers = Levers(
        swap="auto" if way.swap else "none", cast_saved="bf16" if way.in_half else "none"
    )
    prepared = prepare(Request(model=path, levers=levers))
    before, base_us = prepared.baseline.peak_bytes, prepared.baseline.time_us
    if way.in_half:
        prepared = halved(prepared, frozenset(ranked(prepared, None)), "bf16")
    hardware = prepared.hardware
    settings = Settings(
        budget_bytes=NO_LIMIT,
        allow_recompute=way.recompute,
        swap_out_bytes_per_s=hardware.copy_to_host_bytes_per_s if way.swap else 0.0,
        swap_in_bytes_per_s=hardware.copy_from_host_bytes_per_s if way.swap else 0.0,
    )
    if way.resident:
        prepared = everything_on_host(prepared, replace(settings, budget_bytes=before // 10))
    orders = base_orders(prepared, time_limit_s=limit_s / 3)
    problems = [formulate_in(prepared, o.order, settings, NO_LIMIT).problem for o in orders[:6]]
    found = min_peak_of(problems, time_limit_s=limit_s)[1]
    return {
        "peak_bytes": found.peak_bytes,
        "ratio": found.time_us / base_us,
        "halved_tensors": len(prepared.halved),
    }


def on_gpu(path: Path, hardware: str) -> Prepared:
    """Prepare a model for CUDA, without a run."""
    return prepare(Request(model=path, device="cuda", costs=Costs(hardware=hardware)))


def least_on_gpu(prepared: Prepared, limit_s: float) -> int:
    """Return the least peak that a short search with recompute and swaps finds."""
    orders = base_orders(prepared, time_limit_s=limit_s)
    settings = settings_of(prepared)
    return min(NO_LIMIT, least_found_peak(prepared, settings, orders[:3], time_limit_s=limit_s))

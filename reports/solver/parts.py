"""Which problems each part of the benchmark solves, and how."""

from __future__ import annotations

import itertools
import math
from argparse import Namespace
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from planner.pipeline.answer.problem import problem_in
from planner.pipeline.prepare.prepared import prepare
from planner.pipeline.solve.orders import base_orders
from planner.plan.problem import Problem
from planner.request import Costs, Request
from reports.shared import ZOO
from reports.solver.build import Mode, base_peak, with_budget, with_levers
from reports.solver.moccasin import read, read_folder, short_name
from reports.solver.row import Method
from reports.solver.synthetic import SIZES, irregular, synthetic


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One row to come: `key` says which row of the part it is, `problems` have the budget: one, or
    the same in several base orders, by name."""

    key: dict[str, Any]
    problems: dict[str, Problem]
    method: Method
    limit_s: float


def _moccasin(options: Namespace) -> Iterator[Case]:
    methods: list[Method] = options.methods or ["planner", "moccasin"]
    for name, path in _published(options).items():
        instance = read(path)
        extra = {"order": instance.order_source}
        for percent in options.percents or [90, 80, 50]:
            yield from _cases(name, instance.problem, percent, "recompute", methods, options, extra)


def _checkmate(options: Namespace) -> Iterator[Case]:
    methods: list[Method] = options.methods or ["planner", "checkmate"]
    problems: dict[str, Problem] = {}
    for operations in options.sizes or [50, 100]:
        for problem in (synthetic("chain", operations), irregular(operations)):
            problems[problem.name] = problem
    if options.instances:
        few = {n: p for n, p in _published(options).items() if "train" in n}
        problems |= {n: read(p).problem for n, p in few.items()}
    for name, problem in problems.items():
        if options.only not in name or len(problem.ops) > 150:
            continue
        for percent in options.percents or [90, 70, 50]:
            yield from _cases(name, problem, percent, "recompute", methods, options)


def real_orders(model: Path, hardware: str, order_limit_s: float = 20.0) -> dict[str, Problem]:
    """Return the problem of a model's training step in every base order, the least peak's first.

    Each one's capacity is its peak. Durations and copy bandwidths are the profile's; buffers are rounded
    up as ONNX Runtime's arena does. Kernels' workspace is that of the CPU's, the only one known.
    """
    prepared = prepare(Request(model=model, costs=Costs(hardware=hardware)))
    orders = base_orders(prepared, time_limit_s=order_limit_s)
    return {o.name: problem_in(prepared, o.order, name=model.stem) for o in orders}


def _real(options: Namespace) -> Iterator[Case]:
    paths: list[Path] = options.models or sorted(ZOO.glob("*.onnx"))
    modes: list[Mode] = options.modes or ["recompute", "swap", "both"]
    for path in paths:
        if options.only not in path.stem:
            continue
        orders = real_orders(path, options.hardware)
        peak = min(base_peak(problem) for problem in orders.values())
        for percent, mode in itertools.product(options.percents or [90, 70, 50, 35], modes):
            capacity = math.ceil(percent * peak / 100)
            for copies in _kinds(mode, options):
                overlap = copies == "overlapped"
                problems = {
                    name: with_levers(problem, capacity, mode, overlap=overlap)
                    for name, problem in orders.items()
                }
                for limit_s in options.limits or [60.0]:
                    key = _key(path.stem, percent, mode, copies, "planner", limit_s, peak)
                    key |= {"hardware": options.hardware}
                    yield Case(key=key, problems=problems, method="planner", limit_s=limit_s)


def _synthetic(options: Namespace) -> Iterator[Case]:
    sizes = itertools.product(options.families, options.sizes or [1_000, 3_000])
    for family, operations in sizes:
        yield from _made(
            family, operations, options, [90, 70, 50, 35], ["recompute", "swap", "both"]
        )


def _growth(options: Namespace) -> Iterator[Case]:
    for operations, family in itertools.product(options.sizes or SIZES, options.families):
        yield from _made(family, operations, options, [70], ["recompute", "both"])


def _made(
    family: str, operations: int, options: Namespace, percents: list[float], modes: list[Mode]
) -> Iterator[Case]:
    """Return the cases of a synthetic graph, at the budgets and with the levers asked for, or these."""
    name = f"{family} {operations}"
    if options.only in name:
        problem = synthetic(family, operations)
        for percent in options.percents or percents:
            for mode in options.modes or modes:
                yield from _cases(name, problem, percent, mode, ["planner"], options)


def _published(options: Namespace) -> dict[str, Path]:
    if options.instances is None:
        raise SystemExit("name the folder of the published instances: --instances FOLDER")
    files = read_folder(options.instances, contains=options.only)
    return {short_name(n): p for n, p in files.items() if "_test" not in n}


def _cases(
    name: str,
    problem: Problem,
    percent: float,
    mode: Mode,
    methods: list[Method],
    options: Namespace,
    extra: dict[str, Any] | None = None,
) -> Iterator[Case]:
    """Return the cases of one problem at one budget: every method, limit and kind of copies."""
    peak = base_peak(problem)
    for copies in _kinds(mode, options):
        budgeted = with_budget(problem, percent, mode, overlap=copies == "overlapped")
        for limit_s in options.limits or [60.0]:
            for method in methods:
                key = _key(name, percent, mode, copies, method, limit_s, peak) | (extra or {})
                yield Case(key=key, problems={"": budgeted}, method=method, limit_s=limit_s)


def _key(
    name: str, percent: float, mode: Mode, copies: str, method: Method, limit_s: float, peak: int
) -> dict[str, Any]:
    return {
        "instance": name,
        "percent": percent,
        "mode": mode,
        "copies": copies,
        "method": method,
        "limit_s": limit_s,
        "peak_before_bytes": peak,
    }


def _kinds(mode: Mode, options: Namespace) -> list[str]:
    """Return the kinds of copies: none, beside the operations, and on request serial."""
    if mode == "recompute":
        return ["none"]
    return ["overlapped", "serial"] if options.serial else ["overlapped"]


PARTS = {
    "moccasin": _moccasin, "checkmate": _checkmate, "real": _real, "synthetic": _synthetic,
    "growth": _growth,
}  # fmt: skip
"""The rows of a part, in the order of its table."""

"""Build the planning problem for a problem file from a prepared model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from planner.graph.model import OpId
from planner.order.reorder import peak_of
from planner.pipeline.prepare.prepared import Prepared
from planner.pipeline.prepare.settings import settings_of
from planner.pipeline.solve.orders import base_orders, formulate_in
from planner.plan.problem import Problem

Order = Literal["default", "best"]


def problem_of(prepared: Prepared, *, name: str, order: Order, order_limit_s: float) -> Problem:
    """Build the problem of a model in one base order; its capacity is that order's own peak.

    Copy bandwidths are the hardware profile's, or 0 if the request forbids copies; buffers are
    rounded up as ONNX Runtime's arena does.

    Args:
        order: ONNX Runtime's own order, or the one with the least peak that planner finds.
        order_limit_s: seconds for that search.
    """
    chosen = prepared.order
    if order == "best":
        chosen = base_orders(prepared, time_limit_s=order_limit_s)[0].order
    return problem_in(prepared, chosen, name=name)


def problem_in(prepared: Prepared, order: Sequence[OpId], *, name: str) -> Problem:
    """Build the problem of a model in a given base order; see `problem_of`."""
    problem = formulate_in(prepared, order, settings_of(prepared), 0).problem
    return replace(problem, name=name, capacity_bytes=peak_of(problem, range(len(problem.ops))))

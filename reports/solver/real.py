"""Problems of ONNX training graphs: as ONNX Runtime optimizes them, in the base orders worth solving."""

from __future__ import annotations

from pathlib import Path

from planner.pipeline.answer.problem import problem_in
from planner.pipeline.prepare.prepared import prepare
from planner.pipeline.solve.orders import base_orders
from planner.plan.problem import Problem
from planner.request import Costs, Request


def real_orders(model: Path, *, hardware: str, order_limit_s: float = 20.0) -> dict[str, Problem]:
    """Return the problem of a model's training step in every base order, by name.

    The first is of the least peak; each one's capacity is its peak. Durations and copy bandwidths are the
    profile's; buffers are rounded up as ONNX Runtime's arena does. Kernels' workspace is that of the
    CPU's, the only one known.

    Args:
        hardware: a profile of `planner/cost/profiles`, or a TOML file.
        order_limit_s: for the search for base orders.
    """
    prepared = prepare(Request(model=model, costs=Costs(hardware=hardware)))
    orders = base_orders(prepared, time_limit_s=order_limit_s)
    return {o.name: problem_in(prepared, o.order, name=model.stem) for o in orders}

"""Problems of ONNX training graphs: as ONNX Runtime optimizes them, in the base orders worth solving."""

from __future__ import annotations

from pathlib import Path

from planner.pipeline.answer.problem import problem_in, problem_of
from planner.pipeline.prepare.prepared import prepare
from planner.pipeline.solve.orders import base_orders
from planner.plan.problem import Problem
from planner.request import Costs, Request

ZOO = Path(__file__).parents[2] / "models" / "zoo"


def real(model: Path, *, hardware: str = "a100-40gb", order_limit_s: float = 20.0) -> Problem:
    """Return the problem of a model's training step, with its peak as its capacity.

    Durations and copy bandwidths are the profile's; buffers are rounded up as ONNX Runtime's arena
    does. Kernels' workspace is that of the CPU's, the only one known.

    Args:
        hardware: a profile of `planner/cost/profiles`, or a TOML file.
        order_limit_s: for the search for base orders.

    Raises:
        UsageError, ModelError: see `planner.errors`.
    """
    prepared = prepare(Request(model=model, costs=Costs(hardware=hardware)))
    return problem_of(prepared, name=model.stem, order="best", order_limit_s=order_limit_s)


def real_orders(
    model: Path, *, hardware: str = "a100-40gb", order_limit_s: float = 20.0
) -> dict[str, Problem]:
    """The problem in every base order, by name, as `real` has the first: that of the least peak.
    Each one's capacity is its peak."""
    prepared = prepare(Request(model=model, costs=Costs(hardware=hardware)))
    orders = base_orders(prepared, time_limit_s=order_limit_s)
    return {o.name: problem_in(prepared, o.order, name=model.stem) for o in orders}

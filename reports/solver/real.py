"""Problems of ONNX training graphs: as ONNX Runtime optimizes them, in the best base order found."""

from __future__ import annotations

from pathlib import Path

from planner.pipeline.prepare import prepare, silent
from planner.pipeline.problem import problem_of
from planner.plan.problem import Problem

ZOO = Path(__file__).parents[2] / "models" / "zoo"


def real(model: Path, *, hardware: str = "a100-40gb", order_limit_s: float = 20.0) -> Problem:
    """The problem of a model's training step, its peak as its capacity.

    Durations and copy bandwidths are the profile's; buffers are rounded up as ONNX Runtime's arena
    does. Kernels' workspace is that of the CPU's, the only one known.

    Args:
        hardware: a profile of `planner/cost/profiles`, or a TOML file.
        order_limit_s: for the search for base orders.

    Raises:
        UsageError, ModelError: see `planner.errors`.
    """
    prepared = prepare(
        model,
        dims={},
        hardware=hardware,
        profile=None,
        calibrate=False,
        inputs=None,
        seed=0,
        ort_optimize=True,
        device="cpu",
        progress=silent,
    )
    return problem_of(prepared, name=model.stem, order="best", order_limit_s=order_limit_s)

"""Comparison of the optimized graph with the file, in place of verification."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from planner.graph.liveness import timeline
from planner.pipeline.prepare.prepared import Prepared, Progress

if TYPE_CHECKING:
    import numpy.typing as npt

    from planner.runtime.profiled import Profiled


def compared(prepared: Prepared, *, progress: Progress, opened: Profiled | None = None) -> Prepared:
    """Compare the numbers of the model's graph with the file's, and note how in its assumptions.

    Args:
        opened: a session of the file with default options, if there is one; released after its run.

    Raises:
        VerificationError: ONNX Runtime's optimizers made a graph that computes something else.
    """
    if not prepared.ort_optimized:
        return prepared  # the graph is the file's own
    from planner.runtime.feeds.inputs import make_inputs
    from planner.runtime.optimizers.same_numbers import OptimizedFile, same_numbers

    request, loaded, baseline = prepared.request, prepared.loaded, prepared.baseline

    def feeds() -> Mapping[str, npt.NDArray[Any]]:
        return make_inputs(loaded.path, request.seed, loaded.dims, request.inputs)[0]

    progress("comparing the optimized graph with the file")
    subject = OptimizedFile(
        path=loaded.path,
        original=loaded.model,
        model=prepared.model,
        graph=prepared.graph,
        order=prepared.order,
        level=prepared.level,
        step_us=baseline.time_us,
        no_runs=request.costs.calibrate == "never",
        peak_bytes=timeline(baseline.graph, baseline.order).peak_bytes,
        seed=request.seed,
        opened=opened,
    )
    said = same_numbers(subject, feeds)
    return prepared.noted(said)

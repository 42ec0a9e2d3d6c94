"""The comparison that stands in for verification, where a rewritten model is not run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from planner.graph.liveness import timeline
from planner.pipeline.prepare import Prepared, Progress

if TYPE_CHECKING:
    import numpy.typing as npt


def compared(
    prepared: Prepared, *, inputs: Path | None = None, seed: int = 0, progress: Progress
) -> Prepared:
    """The same, with a sentence among its assumptions on how its graph was compared with the file.

    Args:
        inputs: arrays given by the user; None for the model's sidecar, or seeded ones.

    Raises:
        VerificationError: ONNX Runtime's optimizers made a graph that computes something else.
    """
    if not prepared.ort_optimized:
        return prepared  # the graph is the file's own
    from planner.runtime.inputs import make_inputs
    from planner.runtime.same_numbers import Subject, same_numbers

    loaded = prepared.loaded

    def feeds() -> Mapping[str, npt.NDArray[Any]]:
        return make_inputs(loaded.path, seed, loaded.dims, inputs)[0]

    progress("comparing the optimized graph with the file")
    subject = Subject(
        path=loaded.path,
        original=loaded.model,
        model=prepared.model,
        graph=prepared.graph,
        order=prepared.order,
        peak_bytes=timeline(prepared.original, prepared.default).peak_bytes,
    )
    said = same_numbers(subject, feeds, seed=seed)
    graph = replace(prepared.graph, assumptions=(*prepared.graph.assumptions, said))
    return replace(prepared, graph=graph)

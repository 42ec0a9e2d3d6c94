"""Time per operation from an ONNX Runtime profile: measured beats modelled."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from planner.cost.hardware import Hardware, load_hardware
from planner.cost.model import durations_us
from planner.errors import UsageError
from planner.graph.model import TrainingGraph

if TYPE_CHECKING:
    import numpy.typing as npt

    from planner.runtime.options import Level
    from planner.runtime.profile import Run

Durations = tuple[tuple[float, ...], tuple[str, ...]]


def durations_from_profile(
    graph: TrainingGraph, profile_path: Path, hardware: Hardware | None = None
) -> Durations:
    """Microseconds of each operation by OpId from a profile, and what was assumed.

    The median over the runs of the profile, without the first where there are more (it allocates).
    A node that the profile lacks gets its roofline time, scaled as the others came out.

    Args:
        profile_path: written by ONNX Runtime with `enable_profiling`.
        hardware: for the nodes that are missing; the cpu profile if None.

    Raises:
        ModelError: not a profile. UsageError: it names none of the graph's nodes.
    """
    from planner.runtime.profile import read_profile

    return _durations(graph, read_profile(profile_path), hardware, Path(profile_path).name)


def calibrate(
    model_path: Path,
    graph: TrainingGraph,
    inputs: Mapping[str, npt.NDArray[Any]],
    hardware: Hardware | None = None,
    *,
    runs: int = 4,
    level: Level = "extended",
) -> Durations:
    """Run the model on this machine's CPU with a profile; see `durations_from_profile`.

    Args:
        level: of the optimizations that `graph` is made by.

    Raises:
        ModelError: ONNX Runtime cannot load or run the model.
    """
    from planner.runtime.options import Opening
    from planner.runtime.profile import profile

    measured = profile(model_path, inputs, Opening(level=level), runs=runs)
    return _durations(graph, measured, hardware, "the calibration run")


def _durations(
    graph: TrainingGraph, runs: tuple[Run, ...], hardware: Hardware | None, what: str
) -> Durations:
    times: dict[str, list[int]] = {}
    for run in runs[1:] or runs:
        for event in run:
            times.setdefault(event.name, []).append(event.duration_us)
    medians = {name: float(statistics.median(values)) for name, values in times.items()}
    modelled, _ = durations_us(graph, hardware or load_hardware("cpu"))
    found = [op for op in graph.operations if op.name in medians]
    if not found:
        raise UsageError(
            f"{what} names none of the model's nodes; make it with the same model file, at "
            "optimization level EXTENDED"
        )
    base = sum(modelled[op.id] for op in found)
    scale = sum(medians[op.name] for op in found) / base if base else 1.0
    result = tuple(
        medians.get(op.name, 0.0 if op.is_view else modelled[op.id] * scale)
        for op in graph.operations
    )
    missing = [op.name for op in graph.operations if op.name not in medians and not op.is_view]
    notes = [f"operation times are medians of {max(1, len(runs) - 1)} run(s) in {what}"]
    if missing:
        some = ", ".join(missing[:3]) + (", ..." if len(missing) > 3 else "")
        notes.append(
            f"{len(missing)} operation(s) not in {what} ({some}) get their roofline time times "
            f"{scale:.3g}"
        )
    return result, tuple(notes)

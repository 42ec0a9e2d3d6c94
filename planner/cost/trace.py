"""Operation times from a user's own ONNX Runtime profile, which take precedence over modelled times."""

from __future__ import annotations

import statistics
from pathlib import Path

from planner.choices import HOST_PROFILE
from planner.cost.hardware import Hardware, load_hardware
from planner.cost.measured import Durations, MeasuredTimes
from planner.graph.model import TrainingGraph
from planner.units import counted


def durations_from_profile(
    graph: TrainingGraph, profile_path: Path, hardware: Hardware | None = None
) -> Durations:
    """Return the microseconds of each operation by OpId from a profile, and the assumptions made.

    Each time is the median over the profile's runs, without the first if there are more (it
    allocates memory). A node that the profile lacks gets its roofline time, scaled by profiled over
    roofline time of the others.

    Args:
        profile_path: written by ONNX Runtime with `enable_profiling`.
        hardware: for the nodes that are missing; the cpu profile if None.

    Raises:
        ModelError: not a profile. UsageError: it names none of the graph's nodes.
    """
    from planner.runtime.profile import read_profile

    path = Path(profile_path)
    runs = read_profile(path)
    times: dict[str, list[int]] = {}
    for run in runs[1:] or runs:
        for event in run:
            times.setdefault(event.name, []).append(event.duration_us)
    medians = {name: float(statistics.median(values)) for name, values in times.items()}
    count = max(1, len(runs) - 1)
    measured = MeasuredTimes(kernel_us=medians, runs=count)
    result, notes = measured.durations(graph, hardware or load_hardware(HOST_PROFILE), path.name)
    return result, (
        f"operation times are medians of {counted(count, 'run')} in {path.name}",
        *notes,
    )

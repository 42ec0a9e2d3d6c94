"""The placement of a file's nodes on a target, as ONNX Runtime reports it."""

from __future__ import annotations

from pathlib import Path

from planner.files.temporary import temporary_folder
from planner.graph.model import Placement
from planner.runtime.device.client import optimize
from planner.targets import Target


def placement_of(model: Path, target: Target) -> Placement:
    """Return the placement of a model's nodes on a target with a memory of its own.

    Raises:
        UsageError: the target's device is not available.
        ModelError: the model does not load on it.
    """
    with temporary_folder() as folder:
        placed = optimize(target, model, folder / "placed.onnx", level="disabled")
    on_cpu = frozenset(name for name, on_device in placed.items() if not on_device)
    return Placement(on_cpu=on_cpu, inplace=target.inplace)

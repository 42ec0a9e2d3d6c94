"""One file for every target: `--device any`.

Such a file exists if every target runs the same nodes and none leaves one to the CPU: a border
between CPU and device would add a copy that another target must not have. Swaps are then copies on
every target, anchors are operators that all targets have, and the order is pinned against the
optimizers of each. Targets that are installed here are asked; for the others their list of kernels
is trusted, and the plan says so.

Networks whose loss has an operator that WebGPU lacks (`LogSoftmax`, say) have no such file.
"""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

from planner.errors import ModelError, UsageError
from planner.files.temporary import temporary_folder
from planner.graph.model import Placement
from planner.onnxio.load import ValueType
from planner.pipeline.target.placing import is_assumed
from planner.runtime.device import client
from planner.runtime.device.predict.assumed import assumed_placement
from planner.runtime.optimizers.shapes import without_large_initializers
from planner.targets import ANY, Target, devices
from planner.targets.backend import backend_of

NOWHERE = Placement(on_cpu=frozenset())
"""Placement for every target: no node runs on the CPU, and no kernel is assumed to write in place."""


def devices_here(target: Target) -> tuple[Target, ...]:
    """Return the targets with their own memory that a file for `target` can run on here.

    `target` itself is left out, and so is a provider that is installed but sees no device.
    """
    if not target.everywhere:
        return ()
    found: list[Target] = []
    for other in devices():
        if is_assumed(other):
            continue
        try:
            backend_of(other).find()
        except UsageError:
            continue
        found.append(other)
    return tuple(found)


def check_everywhere(
    model: ir.Model, types: Mapping[str, ValueType]
) -> tuple[Placement, tuple[str, ...]]:
    """Return the placement of a file for every target, and notes on it.

    Args:
        model: the CPU's optimizers' result.
        types: of its values.

    Raises:
        ModelError: some target does not run all nodes on its device; it names the first such node.
    """
    here = devices_here(ANY)
    notes: list[str] = []
    for other in devices():
        if other in here:
            on_device = _asked(model, other)
        else:
            on_device = assumed_placement(model, types, other)
            notes.append(f"{other.title} is assumed to run every node, from its list of kernels")
        for node in model.graph:
            if not on_device.get(str(node.name), False):
                raise ModelError(
                    f"no one file runs as planned on every target: {other.title} does not run node "
                    f"{node.name!r} ({node.op_type}) on the device; name one with --device"
                )
    return NOWHERE, ("one file for every target: none leaves a node to the CPU", *notes)


def _asked(model: ir.Model, target: Target) -> dict[str, bool]:
    """Ask the target's session, for each node, whether it keeps the node, on the device."""
    with temporary_folder() as folder:
        source = folder / "model.onnx"
        ir.save(without_large_initializers(model), source)
        return client.optimize(target, source, folder / "placed.onnx", level="all")

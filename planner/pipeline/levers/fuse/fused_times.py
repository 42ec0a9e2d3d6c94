"""Times of fused nodes, measured by one run of about a second if the other times are measured."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import onnx_ir as ir

from planner.errors import PlannerError
from planner.files.temporary import temporary_folder
from planner.pipeline.prepare.costing import MEASURED
from planner.pipeline.prepare.prepared import Prepared
from planner.targets.keys import NEEDS_FUSED, NEEDS_KEY


def measured_us(
    prepared: Prepared, model: ir.Model, known_us: Mapping[str, float], names: Collection[str]
) -> dict[str, float]:
    """Return the microseconds of fused nodes by name, scaled to the time when the others were measured.

    Empty if the others are not from this machine's CPU, or the model cannot be run.

    Args:
        model: with the fused nodes.
        known_us: times of its other nodes, by name.
        names: names of the fused nodes.
    """
    from planner.processes.children import quiet
    from planner.runtime.feeds.inputs import make_inputs
    from planner.runtime.op_times import op_times
    from planner.runtime.options import Opening, default_threads
    from planner.runtime.profiled import may_copy

    is_here = prepared.target.is_host and prepared.cost_source.startswith(MEASURED)
    if not is_here or not may_copy(model, prepared.loaded):
        return {}
    request, loaded = prepared.request, prepared.loaded
    opening = Opening(level="disabled", threads=default_threads())
    try:
        feeds, _ = make_inputs(loaded.path, request.seed, loaded.dims, request.inputs)
        with temporary_folder() as folder, quiet():
            path = folder / "fused.onnx"
            copy = model.clone()
            copy.metadata_props[NEEDS_KEY] = NEEDS_FUSED
            ir.save(copy, path)
            found = op_times(path, feeds, opening, nodes=len(list(copy.graph))).kernel_us
    except PlannerError:
        return {}
    shared = [name for name in known_us if name in found and found[name] > 0]
    now_us, then_us = sum(found[n] for n in shared), sum(known_us[n] for n in shared)
    if not now_us or not then_us:
        return {}
    return {name: found[name] * then_us / now_us for name in names if name in found}

"""The graph that a target runs, and the placement of its nodes.

ONNX Runtime decides both when it creates a session. If the target's provider is installed, planner
asks it. Otherwise planner takes the graph as it is and places it by the provider's list of kernels
(`planner.runtime.device.predict.assumed`); the plan says that this is an assumption.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import onnx_ir as ir

from planner.errors import UsageError
from planner.graph.model import Placement
from planner.graph.rules import COPIES
from planner.onnxio.load import LoadedModel, ValueType
from planner.onnxio.names import name_nodes
from planner.pipeline.target.targeting import kept_on_cpu
from planner.runtime.device.borders import with_borders
from planner.runtime.device.copies import copies_of
from planner.runtime.device.predict.assumed import assumed_placement, host_inputs, host_outputs
from planner.runtime.optimizers.normalize import (
    Normalized,
    Written,
    normalize_ahead,
    normalize_for,
)
from planner.runtime.options import Level
from planner.targets import Target
from planner.targets.backend import backend_of

ASSUMED = (
    "the provider is not installed here: the graph is planned as it is, and the placement of its "
    "nodes is assumed from the provider's list of kernels"
)


def is_assumed(target: Target) -> bool:
    """Tell whether the target's placement must be assumed here."""
    return target.own_memory and not backend_of(target).is_installed()


def check_can_run(target: Target) -> None:
    """Raise UsageError, with both ways out, if models cannot run on the target here."""
    if is_assumed(target):
        raise UsageError(
            f"{backend_of(target).why_missing()}; or plan without running, with --no-verify"
        )


def placed(
    loaded: LoadedModel,
    target: Target,
    *,
    level: Level,
    passes: int,
    written: Written | None = None,
) -> tuple[Normalized, tuple[str, ...]]:
    """Return the graph as the provider runs it, placed, and notes on it.

    Args:
        level: of the optimizations; passes: their repetitions at most.
        written: returns the optimized graph that a session of the model writes. The result may then
            be that of the first pass: see `Normalized.confirmed`.

    Raises:
        UsageError: the provider is installed and sees no device.
        ModelError: ONNX Runtime cannot load the model.
    """
    passes = 1 if level == "disabled" else passes
    if level == "all" and passes > 1 and written is not None and target.is_host:
        return normalize_ahead(loaded, written()), ()
    made = () if written is None else (written,)
    found = normalize_for(loaded, target, level=level, passes=passes, written=made)
    return found, _notes(target, found, f"as ONNX Runtime's {target.provider} places them")


def assumed(
    loaded: LoadedModel, target: Target, types: Mapping[str, ValueType]
) -> tuple[Normalized, tuple[str, ...]]:
    """Place the graph as it is by the provider's list of kernels; return it and notes.

    Args:
        types: of the values of `loaded.model`.
    """
    name_nodes(loaded.model)
    on_device = assumed_placement(loaded.model, types, target)
    on_device |= dict.fromkeys(kept_on_cpu(target), False)
    inputs, outputs = (partial(f, target=target) for f in (host_inputs, host_outputs))
    model = with_borders(loaded.model, on_device, inputs, outputs)
    name_nodes(model)
    on_cpu = frozenset(
        str(n.name)
        for n in model.graph
        if n.op_type not in COPIES and not on_device.get(str(n.name))
    )
    found = Normalized(model=model, placement=Placement(on_cpu=on_cpu, inplace=target.inplace))
    return found, (ASSUMED, *_notes(target, found, "according to its list of kernels"))


def _notes(target: Target, found: Normalized, how: str) -> tuple[str, ...]:
    if found.placement is None:
        return ()
    kept = kept_on_cpu(target)
    count = len(copies_of(found.model))
    return (
        *([f"kept on the CPU by {target.keep_option}: {', '.join(kept)}"] if kept else []),
        f"{len(found.placement.on_cpu)} of {len(found.model.graph)} nodes run on the CPU, and {count} "
        f"copies between it and {target.title} are in the graph ({how})",
    )


def typed(model: ir.Model, types: Mapping[str, ValueType]) -> dict[str, ValueType]:
    """Return `types` with those of the copies in `model`: a copy has its source's type."""
    found = dict(types)
    for node in copies_of(model):
        source, made = node.inputs[0], node.outputs[0]
        if source is not None and str(source.name) in found:
            found.setdefault(str(made.name), found[str(source.name)])
    return found

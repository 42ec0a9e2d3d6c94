"""Adapt a target to a model, and check which target a file was written for.

The metadata of planner's own files names their target and its provider options.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import onnx_ir as ir

from planner.errors import ModelError
from planner.onnxio.bodies import has_bodies
from planner.runtime.optimizers.blocked import check_block
from planner.targets import ANY, HOST, TARGETS, Target
from planner.targets.keys import OPTIONS_KEY, TARGET_KEY


def fit_target(target: Target, model: ir.Model) -> Target:
    """Return the target with the provider options that keep nodes on the CPU which the device cannot run.

    Raises:
        ModelError: a node that must stay on the CPU has no name, which the provider option needs.
    """
    names: list[str] = []
    for node in model.graph:
        outputs = sum(bool(v.name) for v in node.outputs)
        if outputs >= target.keep_on_cpu.get(node.op_type, len(node.outputs) + 1):
            if not node.name:
                raise ModelError(
                    f"{target.title} cannot run {node.op_type} with {outputs} outputs, and the node "
                    f"that makes {node.outputs[0].name!r} has no name by which to keep it on the CPU; "
                    "name it"
                )
            names.append(node.name)
    if not names:
        return target
    return replace(target, options={**target.options, target.keep_option: "\n".join(names)})


def kept_on_cpu(target: Target) -> tuple[str, ...]:
    """Return the names of the nodes that the target's options keep on the CPU."""
    return tuple(name for name in target.options.get(target.keep_option, "").split("\n") if name)


def target_metadata(target: Target) -> dict[str, str]:
    """Return the metadata of a file written for a target."""
    found = {TARGET_KEY: target.name}
    if target.options:
        found[OPTIONS_KEY] = json.dumps(dict(target.options))
    return found


def check_place(model: ir.Model, target: Target) -> None:
    """Raise ModelError if a node with bodies would run on a device.

    Bodies are planned on the CPU only.
    """
    node = next((n for n in model.graph if has_bodies(n)), None)
    if node is not None and not target.is_host:
        raise ModelError(
            f"node {node.name!r} ({node.op_type}) runs graphs of its own, whose placement on "
            f"{target.title} is not planned yet: use --device {HOST.name}"
        )


def check_target(model: ir.Model, path: Path, target: Target) -> None:
    """Raise an error if planner wrote a model for another target or another kind of processor.

    The copies and anchors in the file fit the placement on its own target. On another, ONNX Runtime
    would add unplanned copies of tensors, or would not load the file.

    Raises:
        ModelError: the file is for another target.
        UsageError: the file is for another kind of processor.
    """
    written_for = model.metadata_props.get(TARGET_KEY, target.name)
    if written_for not in TARGETS:
        raise ModelError(
            f"{path} says in its metadata that planner wrote it for {written_for!r}, a device that this "
            f"version does not know; if planner did not write it, remove the entry {TARGET_KEY!r}"
        )
    check_block(model.metadata_props, str(path))
    if written_for not in (target.name, ANY.name):
        raise ModelError(
            f"{path} was written by planner for {written_for}, not for {target.name}: use --device "
            f"{written_for}, or plan the original model again with --device {target.name}"
        )

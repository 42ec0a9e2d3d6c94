"""Capabilities of the installed build of ONNX Runtime.

`onnxruntime-training` and `onnxruntime-training-cpu` (the last version is 1.19.2) share the import
name `onnxruntime` with the stock wheels. They have the gradient kernels, run Shape and Size nodes
elsewhere (`planner.graph.schedule`), and on the CPU lack the kernels that copy between host and device.
"""

from __future__ import annotations

import functools
import importlib
from typing import TYPE_CHECKING

from planner.errors import ModelError
from planner.graph.operators.training import TRAINING
from planner.graph.reasons import WhyClosed
from planner.graph.rules import SWAP_DOMAIN
from planner.targets import Target

if TYPE_CHECKING:
    import onnx_ir as ir

TRAINING_VERSION = "1.19.2"
_MAX_IR_VERSION, _MAX_OPSET = 10, 21  # that onnxruntime-training 1.19.2 accepts
_DOMAINS = ("", "ai.onnx", "com.microsoft")
_TORCH = {"YieldOp", "ATen", "PythonOp", "PythonOpGrad"}
_INSTALL = (
    f"install onnxruntime-training-cpu=={TRAINING_VERSION} (or onnxruntime-training, for a GPU) with "
    "planner in a Python 3.11 environment of its own, and run planner there"
)


@functools.cache
def is_training_build() -> bool:
    """Tell whether the installed onnxruntime has gradient kernels."""
    try:
        state = importlib.import_module("onnxruntime.capi.onnxruntime_pybind11_state")
    except ImportError:
        return False
    return hasattr(state, "GradientGraphBuilder")


def has_pool() -> bool:
    """Tell whether CPU sessions of the installed build can use planner's pool: the training build
    cannot, since it takes no allocator from a library."""
    return not is_training_build()


def check_build(model: ir.Model) -> None:
    """Check that the installed build can run a training graph at all.

    Raises:
        ModelError: the file has copies beside the operations, is a graph of ORTModule, has gradient
            operators without kernels in this build, or is an artifact of another version of
            onnxruntime-training. The message names the node, and the remedy.
    """
    _check_original(model)
    training = [n for n in model.graph if n.op_type in TRAINING and n.domain in _DOMAINS]
    for node in model.graph:
        if node.op_type in _TORCH:
            raise ModelError(
                f"node {node.name!r} ({node.op_type}) makes this a graph of ORTModule, which only "
                "PyTorch can run; make training artifacts of the model instead "
                "(onnxruntime.training.artifacts.generate_artifacts), or planner export"
            )
    if not training:
        return
    first = training[0]
    if not is_training_build():
        kinds = sorted({n.op_type for n in training})
        others = f", and {len(kinds) - 3} more kinds" if len(kinds) > 3 else ""
        raise ModelError(
            f"the installed onnxruntime {_version()} has no kernels for {', '.join(kinds[:3])}"
            f"{others} (first at node {first.name!r}), operators of onnxruntime-training: {_INSTALL}"
        )
    _check_version(model, training)


def _check_original(model: ir.Model) -> None:
    """Raise ModelError for a file that planner wrote with copies beside the operations."""
    swap = next((node for node in model.graph if node.domain == SWAP_DOMAIN), None)
    if swap is not None:
        raise ModelError(
            f"node {swap.name!r} ({swap.op_type}) belongs to a plan whose copies run beside the "
            "operations: plan the model that this file was made of"
        )


def _check_version(model: ir.Model, training: list[ir.Node]) -> None:
    """Raise ModelError where another version of onnxruntime-training made the artifacts."""
    opset = model.graph.opset_imports.get("", 0)
    newer = ""
    if (model.ir_version or 0) > _MAX_IR_VERSION:
        newer = f"IR version {model.ir_version}, up to {_MAX_IR_VERSION} is read"
    elif opset > _MAX_OPSET:
        newer = f"operator set {opset}, up to {_MAX_OPSET} is read"
    if newer:
        raise ModelError(
            f"this training model was not made by onnxruntime-training {TRAINING_VERSION} "
            f"({newer}); generate the artifacts with {TRAINING_VERSION} and onnx 1.17"
        )
    old = next((n for n in training if n.op_type == "InPlaceAccumulator"), None)
    buffers = any(str(v.name).endswith(".accumulation.buffer") for v in model.graph.inputs)
    if old is not None and buffers:
        raise ModelError(
            f"node {old.name!r} (InPlaceAccumulator) is of an onnxruntime-training older than "
            f"{TRAINING_VERSION}, which accumulates with InPlaceAccumulatorV2; generate the "
            f"artifacts again with {TRAINING_VERSION}"
        )


def _version() -> str:
    try:
        return str(importlib.import_module("onnxruntime").__version__)
    except ImportError:
        return "(none)"


def why_no_copies(target: Target) -> WhyClosed | None:
    """Return why no tensor can be copied to the host and back on `target`; None where it can."""
    return WhyClosed.NO_KERNEL if target.is_host and is_training_build() else None

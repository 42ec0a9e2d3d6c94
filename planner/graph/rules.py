"""What ONNX Runtime does with each operator's buffers, and which operators may run twice.

Three questions per operator, each answered from ONNX Runtime's kernel registrations (`.Alias`,
`.MayInplace` in `KernelDefBuilder`, onnxruntime/core/providers/cpu) and from measurement:

    view_input     which input the output aliases (no work, no memory)
    inplace_pairs  which output may be written over which input when that input has no later reader
    effect         why an operator may not be run a second time ("" where it may)
"""

from __future__ import annotations

from collections.abc import Mapping

_ONNX = frozenset({"", "ai.onnx"})

_VIEWS = frozenset({"Reshape", "Squeeze", "Unsqueeze", "Flatten", "Identity"})

_INPLACE_UNARY = frozenset(
    {"Sigmoid", "Tanh", "Relu", "Softmax", "Clip", "Cast", "LeakyRelu", "Elu", "Selu"}
)

_RANDOM = frozenset(
    {
        "RandomNormal",
        "RandomNormalLike",
        "RandomUniform",
        "RandomUniformLike",
        "Multinomial",
        "Bernoulli",
        "Dropout",
        "BitmaskDropout",
    }
)

COPIES = frozenset({"MemcpyToHost", "MemcpyFromHost"})


def view_input(op_type: str, domain: str) -> int | None:
    """Index of the input that the first output aliases, or None."""
    return 0 if domain in _ONNX and op_type in _VIEWS else None


def inplace_pairs(op_type: str, domain: str) -> tuple[tuple[int, int], ...]:
    """(input index, output index) pairs that the CPU kernel may compute in place."""
    if domain in _ONNX and op_type in _INPLACE_UNARY:
        return ((0, 0),)
    return ()


def effect(op_type: str, domain: str, attributes: Mapping[str, object], training: bool) -> str:
    """Why this operator may not run a second time, or "" where a second run changes nothing.

    Args:
        training: for BatchNormalization and Dropout, whether the node is in training mode.
    """
    if op_type in _RANDOM:
        return f"{op_type} draws random numbers"
    if op_type == "BatchNormalization" and training:
        return "training-mode BatchNormalization updates its running statistics"
    return ""

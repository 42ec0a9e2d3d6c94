"""Bytes on a device: a forecast's result, and the bytes present before the first node."""

from __future__ import annotations

from dataclasses import dataclass

from planner.graph.model import TrainingGraph


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceForecast:
    """The predicted bytes of the device's memory that a session takes.

    Attributes:
        peak_bytes: the most that exist at once, in use or kept, initializers included.
        in_use_bytes: the most that tensors hold at once, with rounding.
        step: the step at which `peak_bytes` is first reached; -1 before the first node.
    """

    peak_bytes: int
    in_use_bytes: int
    step: int


def fed_bytes(graph: TrainingGraph) -> tuple[int, ...]:
    """Return the sizes of the graph inputs that ONNX Runtime copies to the device before the first
    node.

    An input that only a MemcpyFromHost reads stays on the host until then.
    """
    return tuple(
        t.bytes
        for t in (graph.tensors[i] for i in graph.inputs)
        if not t.is_initializer
        and not t.on_host
        and any(graph.operations[op].op_type != "MemcpyFromHost" for op in t.consumers)
    )


def initializer_bytes(graph: TrainingGraph) -> tuple[int, ...]:
    """Return the sizes of the initializers that are read on the device."""
    return tuple(
        t.bytes for t in graph.tensors if t.is_initializer and not t.on_host and t.consumers
    )

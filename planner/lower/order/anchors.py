"""Anchors of nodes: added nodes that read an output of another node at next to no cost.

An anchor is a node that nobody reads, at the end of the file: ONNX Runtime visits it early, and its
input must have been made by then (`planner.lower.order.realize`). It must not be folded, and must run
where its tensor is, or ONNX Runtime would copy the tensor for it. `Size` reads only the shape, but
WebGPU has no kernel for it; there `GatherND` reads one element. The rules of each target are in its
row in `planner.targets`.
"""

from __future__ import annotations

from dataclasses import replace

from planner.graph.marks import PLANNER_ATTRIBUTE, mark_of
from planner.graph.model import Role, Tensor, TrainingGraph
from planner.graph.rules import LEFT_ON_HOST, PER_READER, SWAP_TOKENS
from planner.lower.steps import PlannedStep
from planner.onnxio.names import FreeNames
from planner.targets import HOST, Target
from planner.targets.target import AnchorRule

_SCALARS = {"Size": "int64", "OptionalHasElement": "bool", "SequenceLength": "int64"}
"""Element types of anchors' results that are scalars, whatever is anchored."""


def own_type(op_type: str, tensor: Tensor) -> tuple[str, tuple[int, ...]] | None:
    """Return the element type and shape of an added node's result; None where they are its input's."""
    if op_type in _SCALARS:
        return _SCALARS[op_type], ()
    if op_type in SWAP_TOKENS:
        return "uint8", (1,)
    return (tensor.dtype, (1,)) if op_type == "GatherND" else None


def anchor_operator(target: Target, tensor: Tensor, opset: int, *, on_host: bool) -> str | None:
    """Return the operator that anchors a tensor; None where the target has none for its type.

    Args:
        tensor: the tensor of the original graph, with its element type and rank.
        opset: the model's operator set of the default domain.
        on_host: whether the value to anchor is a copy on the host.
    """
    if tensor.dtype == "sequence":
        return "SequenceLength"
    rules: tuple[AnchorRule, ...] = target.host_anchors if on_host else target.anchors
    rank = len(tensor.shape)
    return next((r.op_type for r in rules if r.fits(tensor.dtype, rank, opset)), None)


class Anchorer:
    """Makes the nodes that pin the order, in a rewritten graph that is being built.

    Args:
        names: names that are free in the model.
        target: the target that the model is written for.
        opset: the model's operator set of the default domain.
    """

    def __init__(
        self, graph: TrainingGraph, names: FreeNames, target: Target = HOST, opset: int = 1
    ) -> None:
        self.graph = graph
        self.names = names
        self.target = target
        self.opset = opset
        self.ids = {t.name: t.id for t in graph.tensors}
        self.number = last_number(graph)

    def can_anchor(self, step: PlannedStep) -> bool:
        """Tell whether some output of `step` can be anchored without a copy."""
        return any(value and self._anchor_operator(step, value) for value in step.writes.values())

    def anchor(self, step: PlannedStep, value: str | None = None) -> PlannedStep | None:
        """Return a node that reads next to nothing of an output of `step`; None where none can.

        Args:
            value: the output; None for the first that can be anchored.
        """
        values = [v for v in step.writes.values() if v] if value is None else [value]
        for value in values:
            op_type = self._anchor_operator(step, value)
            if op_type is not None:
                number = self._next()
                tensor, on_host = self._origin(step, value)
                return PlannedStep(
                    role=Role.ANCHOR,
                    op_type=op_type,
                    on_cpu=on_host and self.target.own_memory,
                    name=self.names.fresh(f"{value}__anchor_{number}"),
                    tensor=tensor.id,
                    reads={"": value},
                    writes={"": self.names.fresh(f"{value}__size_{number}")},
                    number=number,
                )
        return None

    def host_copy(self, step: PlannedStep) -> PlannedStep:
        """Return a node that copies the first output of a planned node to the host.

        An anchor reads the copy if it cannot read the output on the device.
        """
        value = next(v for v in step.writes.values() if v)
        number = self._next()
        return PlannedStep(
            role=Role.ANCHOR,
            op_type="MemcpyToHost",
            name=self.names.fresh(f"{value}__anchor_copy_{number}"),
            tensor=self._origin(step, value)[0].id,
            reads={"": value},
            writes={"": self.names.fresh(f"{value}__anchored_{number}")},
            number=number,
        )

    def _anchor_operator(self, step: PlannedStep, value: str) -> str | None:
        if step.op is not None and self.graph.operations[step.op].op_type in PER_READER:
            return None  # a second reader would be given a copy of it
        tensor, on_host = self._origin(step, value)
        return anchor_operator(self.target, tensor, self.opset, on_host=on_host)

    def _origin(self, step: PlannedStep, value: str) -> tuple[Tensor, bool]:
        """Return (the original tensor that a value of `step` is like, whether the value is on the
        host)."""
        if step.op is None:
            assert step.tensor is not None
            tensor = self.graph.tensors[step.tensor]
            own = own_type(step.op_type, tensor)
            if own is not None:
                tensor = replace(tensor, dtype=own[0], shape=own[1])
            return tensor, step.op_type in LEFT_ON_HOST
        name = next(name for name, written in step.writes.items() if written == value)
        tensor = self.graph.tensors[self.ids[name]]
        return tensor, tensor.on_host

    def _next(self) -> int:
        self.number += 1
        return self.number


def last_number(graph: TrainingGraph) -> int:
    """Return the highest number of an earlier plan's node; 0 where there is none."""
    marks = (mark_of((op.attributes or {}).get(PLANNER_ATTRIBUTE)) for op in graph.operations)
    return max((mark[1] for mark in marks if mark is not None), default=0)

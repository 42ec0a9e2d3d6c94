"""Find the values of a model that depend on samples, by its data flow and not by names.

A value *carries* the batch if its shape follows the batch's size. It *depends on samples* if it is
computed from the data of inputs that carry the batch. The *frontier* are the values that depend on
samples but no longer carry the batch: sums or averages over it, as the loss and each gradient. Values
computed from those alone lie *behind* the frontier (clipping by the norm, the update).

    x [batch] ─ op ─ [batch] ─┬─ ReduceSum ─ gradient ─ AdamW ─ new parameter
                              │              frontier   behind
    only `Shape` of x ─ sized: follows the size of the batch, and no sample

An operation on each sample that reads a value of the frontier couples the samples of a batch: batch
normalization reads means over the batch, and parts of the batch have other means. The runs then do not
add up. One value of the frontier may be read this way: the *count* of a loss's terms (targets that are
not ignored). A count comes from integers by way of a mask, and is only a number; gradients that were
divided by it are weighted with it when they are added up (`planner.micro.kinds`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass

import onnx_ir as ir

from planner.errors import ModelError
from planner.graph.effects import Effect
from planner.graph.operators.table import operator_of
from planner.micro.batch import Batch
from planner.onnxio.load import ValueType

_ONLY_SHAPE = frozenset({"Shape", "Size"})
"""Operators that read the shape of their input, and none of its elements."""

ACCUMULATORS = frozenset({"InPlaceAccumulator", "InPlaceAccumulatorV2", "GradientAccumulator"})
"""onnxruntime-training's own accumulators: they add their second input to their first, run by run."""

NEXT_STEP = "leave --micro-batch out"


@dataclass(frozen=True, slots=True, kw_only=True)
class Flow:
    """The flow of samples through a model. Values are identified by name.

    Attributes:
        batch: the model's batch.
        types: the types of all values, at the batch's size.
        axis: the batch axis of each value that carries the batch.
        samples: values that depend on samples.
        sized: values that follow, or may follow, the batch's size but no sample.
        masks: values that depend on samples only through masks made from integers.
        needed: values that reach an output of the graph.
        frontier: needed values that depend on samples and do not carry the batch, made by nodes that read
            the batch; in the order of the graph.
        counts: values of the frontier from which masks that operations on samples read are computed.
    """

    batch: Batch
    types: Mapping[str, ValueType]
    axis: Mapping[str, int]
    samples: frozenset[str]
    sized: frozenset[str]
    masks: frozenset[str]
    needed: frozenset[str]
    frontier: tuple[str, ...]
    counts: tuple[str, ...]

    def is_behind(self, node: ir.Node) -> bool:
        """Tell whether a node reads values that depend on samples, and none that carries the batch."""
        read = [n for n in _read(node) if n in self.samples]
        return bool(read) and not any(n in self.axis for n in read)


def flow_of(
    model: ir.Model,
    batch: Batch,
    types: Mapping[str, ValueType],
    other: Mapping[str, ValueType],
) -> Flow:
    """Follow the samples through a model.

    Args:
        types: the types of its values at `batch.size`.
        other: the same at another size of the batch.

    Raises:
        ModelError: samples are coupled, and runs on parts of the batch do not add up to a run on all of
            it; the message names the operation.
    """
    walk = _FlowWalk(model, batch, types, other)
    walk.follow()
    needed = _needed(model)
    nodes = [node for node in model.graph if any(v.name in needed for v in node.outputs)]
    for node in nodes:  # name the normalization itself before its helper nodes
        walk.check_statistics(node)
    for node in nodes:
        walk.check(node)
    frontier, coupled = [], set[str]()
    for node in model.graph:
        made = [str(v.name) for v in node.outputs if v.name in needed]
        for name in made:
            if name in walk.samples and name not in walk.axes and walk.reads_batch(node):
                frontier.append(name)
        if any(n in walk.samples and n in walk.axes for n in made):
            coupled.update(n for n in _read(node) if n in walk.masks and n not in walk.axes)
    roots = _roots(model, coupled, set(frontier))
    return Flow(
        batch=batch,
        types=types,
        axis={name: axes[0] for name, axes in walk.axes.items() if axes},
        samples=frozenset(walk.samples),
        sized=frozenset(walk.sized),
        masks=frozenset(walk.masks),
        needed=frozenset(needed),
        frontier=tuple(frontier),
        counts=tuple(name for name in frontier if name in roots),
    )


class _FlowWalk:
    """One pass over the nodes of a model, in their order."""

    def __init__(
        self,
        model: ir.Model,
        batch: Batch,
        types: Mapping[str, ValueType],
        other: Mapping[str, ValueType],
    ) -> None:
        self.model, self.batch, self.types = model, batch, types
        self.axes = {
            name: tuple(
                i for i, (a, b) in enumerate(zip(kind.shape, found.shape, strict=True)) if a != b
            )
            for name, kind in types.items()
            if (found := other.get(name)) is not None
            and len(found.shape) == len(kind.shape)
            and found.shape != kind.shape
        }
        self.samples = set(batch.inputs)
        self.sized: set[str] = set()
        self.whole = {n for n in batch.inputs if not _is_real(types[n])}
        self.masks: set[str] = set()

    def follow(self) -> None:
        for node in self.model.graph:
            read, made = list(_read(node)), [str(v.name) for v in node.outputs if v.name]
            known = [n for n in read if n in self.samples]
            if node.op_type in _ONLY_SHAPE:
                if any(n in self.axes for n in read):
                    self.sized.update(made)
                continue
            if not known:
                if any(n in self.sized for n in read) or any(n in self.axes for n in made):
                    self.sized.update(made)
                continue
            self.samples.update(made)
            is_whole = all(n in self.whole for n in known)
            is_mask = all(n in self.masks for n in known)
            for name in made:
                if is_whole and not _is_real(self.types[name]):
                    self.whole.add(name)
                if is_mask or (name in self.whole and self.types[name].dtype == ir.DataType.BOOL):
                    self.masks.add(name)

    def reads_batch(self, node: ir.Node) -> bool:
        return any(n in self.samples and n in self.axes for n in _read(node))

    def check(self, node: ir.Node) -> None:
        """Raise ModelError where a node relates samples to each other, or updates state in place."""
        what = f"node {node.name!r} ({node.op_type})"
        if not any(n in self.samples for n in _read(node)):
            return
        if (
            operator_of(node.op_type, node.domain).effect is Effect.STATE_UPDATE
            and node.op_type not in ACCUMULATORS
        ):
            raise ModelError(
                f"{what} updates a state in place, and would do so in each run of a step; make the "
                f"update a model of its own, or {NEXT_STEP}"
            )
        for name in (str(v.name) for v in node.outputs if v.name):
            if name in self.samples and len(self.axes.get(name, ())) > 1:
                raise ModelError(
                    f"{what} makes {name!r} of shape {list(self.types[name].shape)}, which has "
                    "the batch on more than one axis, for pairs of samples: micro-batches have "
                    f"other pairs, so the result would differ; {NEXT_STEP}"
                )
        makes_batch = any(v.name in self.axes for v in node.outputs)
        if self.reads_batch(node) or makes_batch:
            self._check_axis(node, what)
            for value in self._coupled(node):
                raise ModelError(
                    f"{what} reads {self._origin(value)}, taken over all samples (as a batch's "
                    "mean and variance are): micro-batches have others, so the result would "
                    f"differ; normalize each sample alone (LayerNorm, GroupNorm), or {NEXT_STEP}"
                )

    def check_statistics(self, node: ir.Node) -> None:
        """Raise ModelError where a node normalizes with statistics over the batch."""
        if not self.reads_batch(node):
            return
        trains = bool(node.attributes.get_int("training_mode", 0))
        is_batch_norm = node.op_type == "BatchNormalization"
        what = f"node {node.name!r} ({node.op_type}) normalizes with "
        rest = (
            ": micro-batches have others, so the result would differ; export the network with "
            "its batch normalization in evaluation mode, normalize each sample alone (LayerNorm, "
            f"GroupNorm), or {NEXT_STEP}"
        )
        over_batch = operator_of(node.op_type, node.domain).over_batch
        if over_batch or (is_batch_norm and trains):
            raise ModelError(f"{what}the statistics of the batch{rest}")
        for value in self._coupled(node) if is_batch_norm else ():
            raise ModelError(f"{what}statistics of the batch, {self._origin(value)}{rest}")

    def _check_axis(self, node: ir.Node, what: str) -> None:
        data = str(node.inputs[0].name) if node.inputs and node.inputs[0] else ""
        if data not in self.axes or data not in self.samples:
            return
        if node.op_type == "CumSum":
            given = node.inputs[1].const_value if node.inputs[1] is not None else None
            along = None if given is None else int(given.numpy().reshape(-1)[0])
        elif (usual := operator_of(node.op_type, node.domain).axis) is not None:
            along = node.attributes.get_int("axis", usual)
        else:
            return
        rank = len(self.types[data].shape)
        if along is None or along % max(1, rank) in self.axes[data]:
            raise ModelError(
                f"{what} works along the batch: each sample's result depends on the others, and "
                f"micro-batches have fewer of them, so the result would differ; {NEXT_STEP}"
            )

    def _coupled(self, node: ir.Node) -> Iterator[ir.Value]:
        """Yield the inputs of a node on samples that were taken over all samples, masks excluded."""
        for value in node.inputs:
            name = "" if value is None else str(value.name)
            if value is None or name not in self.samples:
                continue
            if name not in self.axes and name not in self.masks:
                yield value

    def _origin(self, value: ir.Value) -> str:
        """Describe a value that was taken over the batch, with the node that did it."""
        node = value.producer()
        while node is not None and not self.reads_batch(node):
            before = next(
                (v for v in node.inputs if v is not None and v.name in self.samples), None
            )
            node = None if before is None else before.producer()
        return f"{value.name!r}" + (
            "" if node is None else f" from node {node.name!r} ({node.op_type})"
        )


def _needed(model: ir.Model) -> set[str]:
    """Return the values that reach an output of the graph, or an accumulator."""
    found: set[str] = set()
    stack = list(model.graph.outputs)
    stack += [
        v for n in model.graph if n.op_type in ACCUMULATORS for v in n.inputs if v is not None
    ]
    while stack:
        value = stack.pop()
        if str(value.name) in found:
            continue
        found.add(str(value.name))
        if (node := value.producer()) is not None:
            stack.extend(v for v in node.inputs if v is not None)
    return found


def _roots(model: ir.Model, names: Set[str], frontier: Set[str]) -> set[str]:
    """Return the values of the frontier that the named values are, or are computed from."""
    makers = {str(v.name): node for node in model.graph for v in node.outputs}
    found, seen, stack = set[str](), set[str](), list(names)
    while stack:
        name = stack.pop()
        if name in seen:
            continue
        seen.add(name)
        if name in frontier:
            found.add(name)
        elif name in makers:
            stack.extend(_read(makers[name]))
    return found


def _is_real(kind: ValueType) -> bool:
    return kind.dtype.is_floating_point()


def _read(node: ir.Node) -> Iterator[str]:
    return (str(v.name) for v in node.inputs if v is not None)

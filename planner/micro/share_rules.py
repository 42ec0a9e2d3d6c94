"""Operator rules for `planner.micro.shares`: the share of a node's outputs, from those of its inputs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from planner.graph.operators.row import ShareRule
from planner.graph.operators.table import operator_of
from planner.micro.flow import Flow

SAMPLES = "samples"
"""The share's atom for a division by a number that grows with the batch."""

_SMALL = 1 << 20
"""Constants with more elements are not searched for zeros."""

Share = Mapping[str, int]


class Unknown(Exception):
    """Nothing can be derived for a node; the message says why."""


@dataclass(frozen=True, slots=True)
class Known:
    """The facts known of a value.

    Attributes:
        share: exponents by atom.
        is_total: the value adds up over the runs.
        is_zero: all elements are 0, which fits any share.
    """

    share: Share = field(default_factory=dict)
    is_total: bool = False
    is_zero: bool = False


PLAIN, ZERO = Known(), Known(is_zero=True)


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules, for the values of one model.

    Attributes:
        flow: the model's flow of samples.
    """

    flow: Flow

    def made(self, node: ir.Node, kinds: list[Known]) -> Known:
        """Derive what is known of a node's outputs.

        Raises:
            Unknown: no rule applies.
        """
        rule = share_of(node)
        if rule is None:
            raise Unknown("has no rule")
        return RULES[rule](self, node, kinds)

    def moved(self, node: ir.Node, kinds: list[Known]) -> Known:
        """Derive a view, in which the rows of a sample must stay together."""
        self._check_rows(node)
        return kinds[0]

    def kept(self, node: ir.Node, kinds: list[Known]) -> Known:
        kind = kinds[0]
        if kind.share and node.op_type == "Cast" and not self.is_real(str(node.outputs[0].name)):
            raise Unknown("rounds what was divided by a size or a count")
        return kind

    def along(self, node: ir.Node, kinds: list[Known]) -> Known:
        """Derive an operation along an axis, which must be another than the batch's."""
        _plain(kinds)
        name = str(node.inputs[0].name) if node.inputs[0] is not None else ""
        axis = self.flow.axis.get(name)
        if axis is not None:
            rank = len(self.flow.types[name].shape)
            along = node.attributes.get_int("axis", -1)
            if node.op_type in ("Softmax", "LogSoftmax"):
                ok = along % rank != axis
            else:
                ok = along % rank > axis
            if not ok:
                raise Unknown("works along the batch")
        return PLAIN

    def compared(self, node: ir.Node, kinds: list[Known]) -> Known:
        """Derive a comparison: its result is the same in any run, since a sample's share is positive."""
        known = _same(kinds)
        if known is ZERO:
            return PLAIN
        if known.share and not any(str(v.name) in self.flow.axis for v in node.outputs):
            raise Unknown("compares a size or a count")
        return PLAIN

    def product(self, node: ir.Node, kinds: list[Known]) -> Known:
        op = node.op_type
        if op == "Reciprocal":
            return Known({a: -e for a, e in kinds[0].share.items()})
        first, second = kinds[0], kinds[1]
        if first.is_zero or (second.is_zero and op != "Div"):
            return ZERO
        share = dict(first.share)
        for atom, exponent in second.share.items():
            share[atom] = share.get(atom, 0) + (exponent if op != "Div" else -exponent)
        made = Known({a: e for a, e in share.items() if e}, first.is_total or second.is_total)
        if op in ("MatMul", "Gemm"):
            made = self._contracted(node, made)
        if op == "Gemm" and len(kinds) > 2:
            if made.is_total and not kinds[2].is_zero:
                raise Unknown("adds something to a total")
            made = _same([made, kinds[2]]) if not made.is_total else made
        return made

    def _contracted(self, node: ir.Node, made: Known) -> Known:
        """Make a product a total where it sums over the batch."""
        names = [str(v.name) for v in node.inputs[:2] if v is not None]
        axes = []
        for name, side in zip(names, ("transA", "transB"), strict=True):
            axis, rank = self.flow.axis.get(name), len(self.flow.types[name].shape)
            inner = rank - 1 if side == "transA" else max(0, rank - 2)
            if node.op_type == "Gemm" and node.attributes.get_int(side, 0):
                inner = rank - 2 if side == "transA" else rank - 1
            axes.append(None if axis is None else axis == inner)
        if axes == [True, True]:
            return Known(made.share, is_total=True)
        if True in axes:
            raise Unknown("sums over the batch with weights that are not samples")
        if axes == [False, False]:
            self._check_beside(node, names)
        return made

    def _check_beside(self, node: ir.Node, names: list[str]) -> None:
        """Raise Unknown where both operands carry the batch, but on different repeated axes."""
        out = str(node.outputs[0].name)
        rank = len(self.flow.types[out].shape)
        behind = {len(self.flow.types[n].shape) - self.flow.axis[n] for n in names}
        if len(behind) > 1 or rank - self.flow.axis.get(out, rank) not in behind:
            raise Unknown("pairs samples")

    def reduced(self, node: ir.Node, kinds: list[Known]) -> Known:
        name, op = str(node.inputs[0].name) if node.inputs[0] is not None else "", node.op_type
        rank, axis = len(self.flow.types[name].shape), self.flow.axis.get(name)
        axes = self._axes(node, rank)
        over = axis is not None and axis in axes
        if share_of(node) == "reduces":
            _plain(kinds[:1])
            if over:
                raise Unknown("takes a value of the batch that is not a sum")
            return PLAIN
        if not over or kinds[0].is_zero:
            return kinds[0]
        share = dict(kinds[0].share)
        if op == "ReduceMean":
            self._check_in_step(name)
            share[SAMPLES] = share.get(SAMPLES, 0) + 1
        return Known({a: e for a, e in share.items() if e}, is_total=True)

    def _axes(self, node: ir.Node, rank: int) -> set[int]:
        given = node.attributes.get_ints("axes")
        if given is not None:
            axes = [*given]
        elif len(node.inputs) > 1 and node.inputs[1] is not None:
            axes = _ints(node.inputs[1])
        else:
            axes = []
        if not axes:
            return set() if node.attributes.get_int("noop_with_empty_axes", 0) else {*range(rank)}
        return {a % rank for a in axes}

    def cut(self, node: ir.Node, kinds: list[Known]) -> Known:
        """Derive a slice, padding or concatenation, which must leave the batch axis alone."""
        op = node.op_type
        sources = [v for v in (node.inputs if op == "Concat" else node.inputs[:1]) if v is not None]
        out = self.flow.types[str(node.outputs[0].name)].shape
        for value in sources:
            name = str(value.name)
            axis, shape = self.flow.axis.get(name), self.flow.types[name].shape
            if axis is not None and shape[axis] != out[axis]:
                raise Unknown("cuts the batch, or adds to it")
        if op == "Concat":
            return _same(kinds)
        if op == "Pad":
            filled = len(node.inputs) > 2 and node.inputs[2] is not None
            mode = node.attributes.get_string("mode", "constant")
            if filled and mode == "constant":
                return _same([kinds[0], kinds[2]])
        if op == "Slice":
            steps = node.inputs[4] if len(node.inputs) > 4 else None
            if steps is not None and min(_ints(steps)) < 0:
                raise Unknown("reverses rows")
        return kinds[0]

    def gathered(self, node: ir.Node, kinds: list[Known]) -> Known:
        data, where = (str(v.name) for v in node.inputs[:2] if v is not None)
        _plain(kinds[1:2])
        axis = self.flow.axis.get(data)
        if data in self.flow.sized and data not in self.flow.axis:  # a dim of a shape
            return self._dim(node, kinds[0])
        along = node.attributes.get_int("axis", 0) % max(1, len(self.flow.types[data].shape))
        if axis is not None and axis == along:
            raise Unknown("picks among samples")
        if node.op_type == "Gather" and axis is not None and where in self.flow.axis:
            raise Unknown("pairs samples")
        return kinds[0]

    def scattered(self, node: ir.Node, kinds: list[Known]) -> Known:
        """Return what is known of scattered updates.

        A result without a batch axis, such as the gradient of an embedding, is a total if the rows
        of all samples are added to zeros. A result with one has the share of its inputs if the
        indices move nothing along that axis.
        """
        _plain(kinds[1:2])
        data, out = str(node.inputs[0].name) if node.inputs[0] else "", str(node.outputs[0].name)
        axis = self.flow.axis.get(out)
        made = _same([kinds[0], kinds[2]])
        if axis is None:
            if node.attributes.get_string("reduction", "none") != "add" or not kinds[0].is_zero:
                raise Unknown("writes samples over each other")
            return Known(made.share, is_total=True, is_zero=made.is_zero)
        along = node.attributes.get_int("axis", 0) % len(self.flow.types[out].shape)
        if node.op_type == "ScatterND" or axis == along or self.flow.axis.get(data, axis) != axis:
            raise Unknown("moves rows of the batch")
        return made

    def size(self, node: ir.Node) -> Known:
        """Derive `Size` or `Shape`.

        The result grows with the batch where it is `Size` of a value with a batch axis, or `Shape` of
        that axis alone. Of a `Shape` that has other axes beside it, one element does: its place is kept
        as "axis i", for the node that picks it (`_dim`).
        """
        name = str(node.inputs[0].name) if node.inputs[0] is not None else ""
        axis, shape = self.flow.axis.get(name), self.flow.types[name].shape
        if axis is None:
            return PLAIN
        start = node.attributes.get_int("start", 0)
        end = node.attributes.get_int("end", len(shape))
        self._check_in_step(name)
        if node.op_type == "Size" or range(len(shape))[start:end] == range(axis, axis + 1):
            return Known({SAMPLES: -1})
        return Known({f"axis {axis - range(len(shape))[start:end].start}": -1})

    def _dim(self, node: ir.Node, shape: Known) -> Known:
        """Derive one dim of a shape."""
        index = node.inputs[1]
        places = [] if index is None else _ints(index)
        rank = self.flow.types[str(node.inputs[0].name)].shape if node.inputs[0] else ()
        if len(places) != 1 or len(rank) != 1:
            raise Unknown("picks among sizes")
        axis = next((a for a in shape.share if a.startswith("axis ")), "")
        if not axis:
            return shape
        return Known({SAMPLES: -1}) if f"axis {places[0] % rank[0]}" == axis else PLAIN

    def _check_in_step(self, name: str) -> None:
        """Raise Unknown where the batch axis has rows beside those of the samples."""
        if self.flow.types[name].shape[self.flow.axis[name]] % self.flow.batch.size:
            raise Unknown("reads rows beside those of the samples")

    def _check_rows(self, node: ir.Node) -> None:
        """Raise Unknown where the rows of a sample do not stay together."""
        source, made = str(node.inputs[0].name) if node.inputs[0] else "", str(node.outputs[0].name)
        old, new = self.flow.axis.get(source), self.flow.axis.get(made)
        if old is None and new is None:
            return
        if old is None or new is None:
            raise Unknown("joins samples in one row")
        self._check_in_step(source)
        self._check_in_step(made)
        shapes = self.flow.types[source].shape[:old], self.flow.types[made].shape[:new]
        if math.prod(shapes[0]) != math.prod(shapes[1]):
            raise Unknown("puts rows of different samples side by side")

    def reads_batch(self, node: ir.Node) -> bool:
        return any(v is not None and v.name in self.flow.axis for v in node.inputs)

    def is_real(self, name: str) -> bool:
        kind = self.flow.types.get(name)
        return kind is not None and kind.dtype.is_floating_point()


def _same(kinds: Sequence[Known]) -> Known:
    """Return the share that all operands have in common, zeros aside."""
    real = [k for k in kinds if not k.is_zero]
    if not real:
        return ZERO
    if any(dict(k.share) != dict(real[0].share) for k in real):
        raise Unknown(
            "mixes values that were divided by a size or a count with values that were not"
        )
    return Known(real[0].share, any(k.is_total for k in real))


def _plain(kinds: Sequence[Known]) -> None:
    if any(k.share and not k.is_zero for k in kinds):
        raise Unknown("is not linear in a value that was divided by a size or a count")


def _each(_rules: Rules, _node: ir.Node, kinds: list[Known]) -> Known:
    """Derive any elementwise function."""
    _plain(kinds)
    return PLAIN


def _one_hot(_rules: Rules, _node: ir.Node, kinds: list[Known]) -> Known:
    """Derive a one-hot encoding, whose third input has the two values."""
    _plain(kinds[:2])
    return kinds[2]


def _chosen(_rules: Rules, _node: ir.Node, kinds: list[Known]) -> Known:
    _plain(kinds[:1])
    return _same(kinds[1:])


RULES: Mapping[ShareRule, Callable[[Rules, ir.Node, list[Known]], Known]] = {
    "keeps": Rules.kept,
    "linear": Rules.kept,
    "view": Rules.moved,
    "sum": lambda _rules, _node, kinds: _same(kinds),
    "product": Rules.product,
    "each": _each,
    "along axis": Rules.along,
    "one hot": _one_hot,
    "compares": Rules.compared,
    "reduces to a total": Rules.reduced,
    "reduces": Rules.reduced,
    "where": _chosen,
    "expands": lambda _rules, _node, kinds: kinds[0],
    "cuts": Rules.cut,
    "gathers": Rules.gathered,
    "scatters": Rules.scattered,
}


def share_of(node: ir.Node) -> ShareRule | None:
    """Look up the rule of a node."""
    return operator_of(node.op_type, node.domain).share


def _ints(value: ir.Value) -> list[int]:
    if value.const_value is None:
        raise Unknown(f"reads {value.name!r}, which is not a constant")
    return [int(i) for i in np.asarray(value.const_value.numpy()).reshape(-1)]


def is_zero(tensor: ir.TensorProtocol | None) -> bool:
    if tensor is None or isinstance(tensor, ir.ExternalTensor):
        return False
    if math.prod(tensor.shape.numpy()) > _SMALL or tensor.dtype == ir.DataType.STRING:
        return False
    return not np.any(tensor.numpy())

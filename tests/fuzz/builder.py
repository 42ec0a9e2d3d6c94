"""A graph under construction: values with known types and shapes, nodes, constants, inputs."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto as T
from onnx import helper as h

Shape = tuple[int, ...]

FLOATS = (T.FLOAT, T.DOUBLE)
INTEGERS = (T.INT64, T.INT32)
DTYPES = {
    T.FLOAT: np.float32,
    T.DOUBLE: np.float64,
    T.FLOAT16: np.float16,
    T.INT64: np.int64,
    T.INT32: np.int32,
    T.UINT8: np.uint8,
    T.INT8: np.int8,
    T.BOOL: np.bool_,
}

OURS = (
    "{}__recompute_1",
    "{}__recompute_1_1",
    "{}__swap_in_1",
    "{}__swap_in_1__node",
    "{}__swap_out",
    "{}__host",
    "{}__barrier_1",
    "{}__scratch_1",
    "{}__anchor_1",
    "{}__size_1",
    "{}__node",
    "{}__count",
    "{}__shape",
    "{}__flat",
    "planner__one_dim",
    "zeros__shape",
    "{}__folded",
)
"""Names of the kind that planner makes."""

WITHIN = "within_"
"""Names of nodes in the bodies of other nodes begin with it: profiles hold them as well."""


class NothingFits(Exception):
    """No value is, and no new input can be, what a template wants."""


@dataclass(frozen=True, slots=True)
class Value:
    """A tensor of the graph: ONNX element type and static shape."""

    name: str
    dtype: int
    shape: Shape

    @property
    def count(self) -> int:
        """Number of elements."""
        return int(np.prod(self.shape, dtype=np.int64))


@dataclass
class Builder:
    """Collects a graph; every choice is drawn from `rng`."""

    rng: random.Random
    odd_names: bool = False
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    values: list[Value] = field(default_factory=list)
    inputs: list[Value] = field(default_factory=list)
    initializers: list[onnx.TensorProto] = field(default_factory=list)
    overridable: list[Value] = field(default_factory=list)
    domains: dict[str, int] = field(default_factory=dict)
    traits: set[str] = field(default_factory=set)
    names: set[str] = field(default_factory=set)

    def chance(self, one_in: int) -> bool:
        """True once in `one_in` draws."""
        return self.rng.randrange(one_in) == 0

    def choose(self, items: Sequence[Any]) -> Any:
        """One of `items`."""
        return items[self.rng.randrange(len(items))]

    def name(self, stem: str) -> str:
        """A free name; now and then one that looks like planner's own."""
        if self.odd_names and self.chance(3):
            base = self.choose(self.values).name if self.values else stem
            wish = self.choose(OURS).format(base)
            if wish not in self.names and len(wish) < 60:
                self.names.add(wish)
                return wish
        number = len(self.names)
        while f"{stem}{number}" in self.names:
            number += 1
        self.names.add(f"{stem}{number}")
        return f"{stem}{number}"

    # -- values ------------------------------------------------------------------------------

    def input(self, dtype: int, shape: Shape) -> Value:
        """A new graph input."""
        value = Value(self.name("x"), dtype, shape)
        self.inputs.append(value)
        self.values.append(value)
        return value

    def pick(
        self,
        dtypes: Sequence[int] = FLOATS,
        where: Callable[[Value], bool] | None = None,
        shape: Shape | None = None,
    ) -> Value:
        """A value of one of these types that fits, recent ones more often; else a new input."""
        fitting = [
            v for v in self.values
            if v.dtype in dtypes and (where is None or where(v)) and (shape is None or v.shape == shape)
        ]  # fmt: skip
        if not fitting or self.chance(12):
            wanted = self._shape_for(where, dtypes[0]) if shape is None else shape
            if wanted is None:
                raise NothingFits
            return self.input(dtypes[0] if not fitting else fitting[-1].dtype, wanted)
        recent = fitting[-4:] if self.chance(2) else fitting
        return self.choose(recent)

    def _shape_for(self, where: Callable[[Value], bool] | None, dtype: int) -> Shape | None:
        for _ in range(60):
            drawn = self.shape()
            if where is None or where(Value("", dtype, drawn)):
                return drawn
        return None

    def shape(self) -> Shape:
        """A shape: mostly a matrix of a KiB or so, now and then a vector, a scalar, an empty one."""
        kind = self.rng.randrange(20)
        if kind < 9:
            return (8, 16)
        if kind < 12:
            return (16, 16)
        if kind < 14:
            return (2, 3, 4, 8)
        if kind < 16:
            return (2, 8, 8)
        if kind == 16:
            return (16,)
        if kind == 17:
            return ()
        if kind == 18 and self.chance(3):
            self.traits.add("zero-size")
            return (0, 16)
        return (self.rng.randint(1, 5), self.rng.randint(1, 5))

    def const(self, array: np.ndarray, *, kind: str = "") -> Value:
        """A constant: a (shared) initializer, a Constant node, or an overridable input."""
        kind = kind or self.choose(("initializer",) * 5 + ("node", "overridable"))
        dtype = h.np_dtype_to_tensor_dtype(array.dtype)
        if kind == "initializer":
            for known in self.initializers:
                same = known.data_type == dtype and tuple(known.dims) == array.shape
                if same and np.array_equal(onnx.numpy_helper.to_array(known), array):
                    self.traits.add("shared initializer")
                    return Value(known.name, dtype, array.shape)
        value = Value(self.name("c"), dtype, array.shape)
        if kind == "node":
            tensor = onnx.numpy_helper.from_array(array, value.name)
            self.nodes.append(h.make_node("Constant", [], [value.name], value=tensor))
            self.traits.add("Constant node")
            return value
        self.initializers.append(onnx.numpy_helper.from_array(array, value.name))
        if kind == "overridable":
            self.overridable.append(value)
            self.traits.add("overridable initializer")
        return value

    def ints(self, *numbers: int, kind: str = "") -> Value:
        """A constant vector of int64."""
        return self.const(np.array(numbers, dtype=np.int64), kind=kind)

    def weights(self, dtype: int, shape: Shape, scale: float = 0.2, *, kind: str = "") -> Value:
        """A constant of normal numbers."""
        seed = self.rng.randrange(3)  # few, so that some are equal
        array = np.random.default_rng(seed).standard_normal(shape) * scale
        return self.const(np.asarray(array, DTYPES[dtype]), kind=kind)

    # -- nodes -------------------------------------------------------------------------------

    def op(
        self,
        op_type: str,
        inputs: Sequence[Value | None],
        *outputs: tuple[int, Shape] | None,
        domain: str = "",
        keep: bool = True,
        **attributes: Any,
    ) -> list[Value]:
        """Append a node; None stands for an input or output left out."""
        made = [Value(self.name("v"), *o) if o is not None else None for o in outputs]
        if None in (*inputs, *made):
            self.traits.add("optional left out")
        while made and made[-1] is None:
            made.pop()
        node = h.make_node(
            op_type,
            [v.name if v is not None else "" for v in inputs],
            [v.name if v is not None else "" for v in made],
            name="" if self.chance(8) else self.name("n"),
            domain=domain,
            **attributes,
        )
        self.nodes.append(node)
        if domain:
            self.domains.setdefault(domain, 1)
        found = [v for v in made if v is not None]
        if keep:
            self.values.extend(found)
        return found

    def same(self, op_type: str, value: Value, *more: Value, **attributes: Any) -> Value:
        """A node whose one output is like its first input."""
        return self.op(op_type, [value, *more], (value.dtype, value.shape), **attributes)[0]

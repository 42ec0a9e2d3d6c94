"""The table of lowering rules, and the context that a rule is given."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import numpy as np
import sympy
import torch
from onnx import helper
from torch import fx

from planner.export.draws import Draw, DrawKind, Random
from planner.export.errors import UnsupportedOperator
from planner.export.write.dtypes import HALF, array_of, numpy_dtype
from planner.export.write.emit import ABSENT, Builder, Value

Result = Value | Sequence[Value | None]
"""Return value of a rule: the operator's result, or one value for each of its results."""

Rule = Callable[..., Result]
"""Function `rule(lowering, *arguments, **keywords)`, with the arguments of the traced graph."""

Dim = int | torch.SymInt
Number = float | torch.SymInt | torch.SymFloat

RULES: dict[str, Rule] = {}
"""Rules by operator and overload, without the leading `aten.`: `add.Tensor`."""

WIDE: set[str] = set()
"""Rules that compute half types in float32 and round once, as PyTorch's kernels do."""


_WHOLE = {"FloorDiv": "Div", "Mod": "Mod", "PythonMod": "Mod", "Max": "Max", "Min": "Min"}
"""ONNX operators for functions of non-negative dimensions, by PyTorch's name for them in sympy."""


def lowers(*operators: str, wide: bool = False) -> Callable[[Rule], Rule]:
    """Register a rule for these operators; without an overload, `.default` is meant.

    Args:
        wide: for rules of several steps that must not be rounded one by one: operands of a half type come
            as float32, and results are rounded at the end.
    """

    def register(rule: Rule) -> Rule:
        for operator in operators:
            key = operator if "." in operator else f"{operator}.default"
            if key in RULES:
                raise ValueError(f"two rules for {key}")
            RULES[key] = rule
            if wide:
                WIDE.add(key)
        return rule

    return register


def register(*operators: str) -> Callable[[Rule], Rule]:
    """Register a user's rule, which replaces any existing one.

    Args:
        operators: names, with namespace and overload if they are not `aten` and `default`: `"erfinv"`,
            `"add.Tensor"`, `"mylib.attention.default"`.
    """

    def replace(rule: Rule) -> Rule:
        for operator in operators:
            key = operator if "." in operator else f"{operator}.default"
            RULES[key] = rule
            WIDE.discard(key)
        return rule

    return replace


def shape_of(node: fx.Node) -> list[Dim]:
    """Return the shape of a traced tensor; symbolic dimensions are SymInts."""
    return list(node.meta["val"].shape)


def rank_of(node: fx.Node) -> int:
    return len(node.meta["val"].shape)


def dtype_of(node: fx.Node) -> torch.dtype:
    return node.meta["val"].dtype


def describe(node: fx.Node) -> str:
    """Return a description of the traced node and its input tensors, for error messages."""

    def tensor(operand: fx.Node) -> str:
        value = operand.meta.get("val")
        if isinstance(value, torch.Tensor):
            return f"{operand.name}: {str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
        return operand.name

    return f"{node.name}({', '.join(tensor(operand) for operand in node.all_input_nodes)})"


class Lowering:
    """The context that lowers one operator: reads operands, appends ONNX nodes named after it."""

    def __init__(
        self,
        builder: Builder,
        symbols: dict[str, tuple[Value, int]],
        *,
        random: Random = "graph",
    ) -> None:
        self.builder = builder
        self.random: Random = random
        self.draws: list[Draw] = []
        """Random tensors that are fed."""
        self.values: dict[fx.Node, Result] = {}
        self.node: fx.Node = cast(fx.Node, None)
        self._symbols = symbols
        """Graph input and axis that each symbolic dimension can be read from."""
        self._extents: dict[str, Value] = {}
        self._widens = False
        self._kept_wide: set[Value] = set()
        self._converted: dict[Value, Value] = {}

    # -- operands ------------------------------------------------------------------------------

    def value(self, operand: fx.Node) -> Value:
        """Return the ONNX value of a traced tensor, in the type that `type_of` returns."""
        found = cast(Value, self.values[operand])
        held = operand.meta.get("val")
        if not isinstance(held, torch.Tensor) or held.dtype not in HALF:
            return found
        is_wide = found in self._kept_wide
        if is_wide == self._widens:
            return found
        if found not in self._converted:
            ends = (torch.float32, held.dtype) if is_wide else (held.dtype, torch.float32)
            tag = f"{operand.name}.as_{'half' if is_wide else 'float'}"
            self._converted[found] = self.cast(found, *ends, tag=tag)
        return self._converted[found]

    def type_of(self, operand: fx.Node) -> torch.dtype:
        """Return the type of `value(operand)`: as traced, or float32 for half types in wide rules."""
        dtype = dtype_of(operand)
        return torch.float32 if self._widens and dtype in HALF else dtype

    def operand(self, operand: fx.Node | Number, dtype: torch.dtype) -> Value:
        """Return a traced tensor, or a maybe symbolic number, as an ONNX value of type `dtype`."""
        if isinstance(operand, torch.SymInt | torch.SymFloat):
            return self._number(cast(sympy.Expr, operand.node.expr), dtype)
        if not isinstance(operand, fx.Node):
            return self.scalar(operand, dtype)
        return self.cast(self.value(operand), self.type_of(operand), dtype)

    def cast(self, value: Value, source: torch.dtype, target: torch.dtype, tag: str = "cast"):
        """Return `value` converted to `target`, or itself if the types are equal."""
        if source == target:
            return value
        kind = helper.np_dtype_to_tensor_dtype(numpy_dtype(target))
        return self.op("Cast", value, tag=tag, to=kind)

    def scalar(self, number: float, dtype: torch.dtype | None = None) -> Value:
        """Return a constant of rank 0, by default of the result's type."""
        return self.builder.constant(np.array(number, numpy_dtype(dtype or self.dtype)))

    def integers(self, *numbers: int) -> Value:
        """Return a 1-D int64 constant."""
        return self.builder.integers(numbers)

    def fed(
        self,
        kind: DrawKind,
        tag: str,
        dims: Sequence[Dim],
        dtype: torch.dtype,
        *,
        chance: float = 0.5,
    ) -> Value | None:
        """Return a random tensor as an input of the graph; None if the graph draws its own."""
        if self.random == "graph":
            return None
        name = self.builder.fresh(self.name(tag))
        self.draws.append(Draw(name=name, dims=dims, dtype=dtype, kind=kind, chance=chance))
        return name

    # -- the result ----------------------------------------------------------------------------

    @property
    def dtype(self) -> torch.dtype:
        """Type of the (first) result that the rule must return."""
        dtype = self._first.dtype
        return torch.float32 if self._widens and dtype in HALF else dtype

    @property
    def shape(self) -> list[Dim]:
        """Shape of the (first) result."""
        return list(self._first.shape)

    @property
    def _first(self) -> torch.Tensor:
        result = self.node.meta["val"]
        return result[0] if isinstance(result, tuple | list) else result

    def apply(self, key: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Result:
        """Run the rule `key` on the operator."""
        traced = [
            self.node.meta.get("val"),
            *(n.meta.get("val") for n in self.node.all_input_nodes),
        ]
        flat = (t for held in traced for t in (held if isinstance(held, list | tuple) else [held]))
        is_half = any(isinstance(t, torch.Tensor) and t.dtype in HALF for t in flat)
        self._widens = key in WIDE and is_half
        self._converted = {}
        try:
            result = RULES[key](self, *args, **kwargs)
            return self._rounded(result) if self._widens else result
        finally:
            self._widens = False

    def keep_wide(self, value: Value) -> Value:
        """Mark and return `value` as float32 even if the trace has a half type.

        Used for statistics, which lose most by rounding.
        """
        self._kept_wide.add(value)
        return value

    def _rounded(self, result: Result) -> Result:
        """Cast results of a wide rule to the types of the trace."""
        held = self.node.meta["val"]
        if isinstance(result, str):
            return self._rounded_one(result, held, "rounded")
        pairs = enumerate(zip(result, held, strict=False))
        return [v and self._rounded_one(v, h, f"rounded.{i}") for i, (v, h) in pairs]

    def _rounded_one(self, value: Value, held: torch.Tensor | None, tag: str) -> Value:
        if held is None or held.dtype not in HALF or value in self._kept_wide:
            return value
        return self.cast(value, torch.float32, held.dtype, tag)

    def unsupported(self, reason: str) -> UnsupportedOperator:
        """Return the error for a form of the operator that the rule does not cover."""
        return UnsupportedOperator(str(self.node.target), describe(self.node), reason)

    # -- nodes ---------------------------------------------------------------------------------

    def name(self, tag: str) -> str:
        return f"{self.node.name}.{tag}" if tag else self.node.name

    def op(self, op_type: str, *operands: Value, tag: str = "", **attributes: Any) -> Value:
        """Append a node. `tag` distinguishes the steps of one operator; the final result has none."""
        return self.builder.add(op_type, operands, self.name(tag), **attributes)

    def ops(
        self, op_type: str, *operands: Value, tags: Sequence[str], **attributes: Any
    ) -> list[Value]:
        """Append a node with a result for each tag."""
        names = [self.name(tag) for tag in tags]
        return self.builder.add_many(op_type, operands, names, **attributes)

    def reduce(
        self, kind: str, value: Value, axes: Sequence[int], *, keep: bool = False, tag: str = ""
    ) -> Value:
        """Append a ReduceSum, ReduceMean, ... over `axes`; none for no axes, ONNX's form for all."""
        if not axes:
            return value
        return self.op(f"Reduce{kind}", value, self.integers(*axes), tag=tag, keepdims=int(keep))

    def reshape(self, value: Value, dims: Sequence[Dim], tag: str = "") -> Value:
        """Reshape `value` to `dims`."""
        return self.builder.reshape(value, self.shape_value(dims, infer=True), self.name(tag))

    def per_channel(self, vector: Value, rank: int, tag: str) -> Value:
        """Reshape [channels] to [1, channels, 1, ...], to broadcast with activations of that rank."""
        return self.reshape(vector, [1, -1, *[1] * (rank - 2)], tag)

    def transpose(self, value: Value, axes: Sequence[int], tag: str = "") -> Value:
        """Permute the axes of `value` to this order."""
        return self.builder.transpose(value, axes, self.name(tag))

    # -- shapes --------------------------------------------------------------------------------

    def shape_value(self, dims: Sequence[Dim], *, infer: bool = False) -> Value:
        """Return `dims` as a 1-D int64 value. With `infer`, a single symbolic one is -1, for Reshape."""
        symbolic = [axis for axis, dim in enumerate(dims) if isinstance(dim, torch.SymInt)]
        if infer and len(symbolic) == 1:
            dims = [-1 if axis in symbolic else dim for axis, dim in enumerate(dims)]
            symbolic = []
        if not symbolic:
            return self.integers(*(int(dim) for dim in dims))
        return self.op("Concat", *(self.extent(dim) for dim in dims), tag="shape", axis=0)

    def extent(self, dim: Dim) -> Value:
        """Return one dimension as an int64 value of shape [1]."""
        if isinstance(dim, torch.SymInt):
            return self._extent(cast(sympy.Expr, dim.node.expr))
        return self.integers(dim)

    def _extent(self, expression: sympy.Expr) -> Value:
        key = str(expression)
        if key not in self._extents:
            self._extents[key] = self._new_extent(expression)
        return self._extents[key]

    def _new_extent(self, expression: sympy.Expr) -> Value:
        if isinstance(expression, sympy.Integer):
            return self.integers(int(expression))
        if isinstance(expression, sympy.Symbol):
            source, axis = self._symbols[str(expression)]
            name = f"{source}.dim_{axis}"
            return self.builder.add("Shape", [source], name, start=axis, end=axis + 1)
        if isinstance(expression, sympy.Mul | sympy.Add):
            op_type = "Mul" if isinstance(expression, sympy.Mul) else "Add"
            first, *rest = (self._extent(cast(sympy.Expr, part)) for part in expression.args)
            for other in rest:
                first = self.builder.add(op_type, [first, other], f"extent.{op_type.lower()}")
            return first
        kind = type(expression).__name__
        if kind in _WHOLE:
            sides = [self._extent(cast(sympy.Expr, part)) for part in expression.args]
            return self.builder.add(_WHOLE[kind], sides, f"extent.{kind.lower()}")
        if isinstance(expression, sympy.Pow) and expression.exp in (2, 3):
            base = self._extent(cast(sympy.Expr, expression.base))
            result = base
            for _ in range(int(expression.exp) - 1):
                result = self.builder.add("Mul", [result, base], "extent.pow")
            return result
        raise self.unsupported(f"cannot compute the dimension {expression} at run time")

    def _number(self, expression: sympy.Expr, dtype: torch.dtype) -> Value:
        """Return an expression of open dimensions as a value of rank 0."""
        if expression.is_number:
            return self.scalar(float(expression), dtype)
        kind = type(expression).__name__
        parts = cast(tuple[sympy.Expr, ...], expression.args)
        if kind == "ToFloat":
            return self._number(parts[0], dtype)
        if kind in ("IntTrueDiv", "FloatTrueDiv"):
            over, under = (self._number(part, dtype) for part in parts)
            return self.op("Div", over, under, tag="share")
        if isinstance(expression, sympy.Pow) and parts[1] == -1:
            return self.op("Reciprocal", self._number(parts[0], dtype), tag="reciprocal")
        if isinstance(expression, sympy.Mul | sympy.Add) and not expression.is_integer:
            op_type = "Mul" if isinstance(expression, sympy.Mul) else "Add"
            first, *rest = (self._number(part, dtype) for part in parts)
            for other in rest:
                first = self.op(op_type, first, other, tag=op_type.lower())
            return first
        whole = self.op("Squeeze", self._extent(expression), tag="extent")
        return self.cast(whole, torch.int64, dtype, "count")

    def count(self, dims: Sequence[Dim], tag: str = "count") -> Value:
        """Return the product of `dims` as a float of rank 0, of the result's type."""
        if not any(isinstance(dim, torch.SymInt) for dim in dims):
            return self.scalar(math.prod(int(dim) for dim in dims))
        product = self.op("Squeeze", self.extent(math.prod(dims)), tag=f"{tag}.extent")
        return self.cast(product, torch.int64, self.dtype, tag)

    def filled(
        self,
        value: float,
        tag: str = "",
        dims: Sequence[Dim] | None = None,
        dtype: torch.dtype | None = None,
    ) -> Value:
        """Return a tensor of equal elements, by default of the result's shape and type."""
        dims = self.shape if dims is None else dims
        kind = numpy_dtype(dtype or self.dtype)
        if any(isinstance(dim, torch.SymInt) for dim in dims):
            return self.builder.filled(self.shape_value(dims), value, kind, self.name(tag))
        array = np.full([int(dim) for dim in dims], value, kind)
        return self.builder.literal(array, self.name(tag))


def normalize(axes: Sequence[int], rank: int) -> list[int]:
    """Return axes counted from the front, ascending."""
    return sorted(axis % rank for axis in axes)


__all__ = [
    "ABSENT",
    "HALF",
    "RULES",
    "Dim",
    "Lowering",
    "Result",
    "array_of",
    "describe",
    "dtype_of",
    "lowers",
    "normalize",
    "numpy_dtype",
    "rank_of",
    "register",
    "shape_of",
]

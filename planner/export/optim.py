"""Optimizer steps, appended to a graph of gradients.

The learning rate and the step number are inputs: a schedule needs no new model. Every state tensor is an
input and, with the suffix of new values, an output. The formulas are PyTorch's.

State has the type of its parameter, as in PyTorch. Half types are computed in float32 and rounded once,
as by PyTorch's fused Adam; PyTorch's other optimizers round after each operation. The learning rate and
the step are float32, or float64 if a parameter is float64.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from onnx import helper

from planner.export.write.emit import Builder, Value

GRADIENT_SUFFIX = "_grad"
UPDATED_SUFFIX = "_new"
LEARNING_RATE = "lr"
STEP = "step"

_WIDE = np.dtype(np.float32)


@dataclass(frozen=True, kw_only=True)
class StateTensor:
    """An input that the optimizer adds, and its value at the first step."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype
    initial: float | np.ndarray
    """One value for all elements, or an array of the tensor's shape."""


@dataclass(frozen=True, kw_only=True)
class Trained:
    """A parameter to update, or the shape and type of a state tensor.

    Attributes:
        value: the parameter after the forward pass, which may change it; "" for the input of its name.
    """

    shape: tuple[int, ...]
    dtype: np.dtype
    value: Value = ""

    @property
    def wide(self) -> np.dtype:
        """Type that the update is computed in; float32 for half types, else the parameter's own."""
        return _WIDE if self.dtype.itemsize < _WIDE.itemsize else self.dtype


Updated = list[tuple[str, Trained]]
"""Names of new values, with their shapes and types."""


class Optimizer(Protocol):
    """An optimizer that appends its update to a graph with named gradients."""

    def append(
        self,
        builder: Builder,
        parameters: Mapping[str, Trained],
        gradient_suffix: str,
        updated_suffix: str,
    ) -> tuple[list[StateTensor], Updated]:
        """Append the update; return the inputs that it needs and the outputs that it makes."""
        ...


@dataclass(frozen=True, kw_only=True)
class SGD:
    """Stochastic gradient descent: `torch.optim.SGD` without dampening.

    The update is `velocity = momentum velocity + gradient; parameter -= lr velocity`, or with Nesterov's
    momentum `parameter -= lr (gradient + momentum velocity)`. Weight decay adds `weight_decay parameter`
    to the gradient.
    """

    momentum: float = 0.0
    nesterov: bool = False
    weight_decay: float = 0.0
    lr: float = 0.01
    """Suggested value of the learning rate input."""

    def append(
        self,
        builder: Builder,
        parameters: Mapping[str, Trained],
        gradient_suffix: str,
        updated_suffix: str,
    ) -> tuple[list[StateTensor], Updated]:
        """Append the update. Its state is `<parameter>_momentum`, if there is momentum."""
        state = [_input(builder, LEARNING_RATE, _widest(parameters), self.lr)]
        rate = _SharedScalar(builder, LEARNING_RATE, state[0].dtype)
        updated: Updated = []
        for key, parameter in parameters.items():
            at = _Arithmetic(builder, parameter)
            value = at.read(parameter.value or key)
            direction = at.read(key + gradient_suffix)
            if self.weight_decay:
                decay = at.scaled(value, self.weight_decay, f"{key}.decay")
                direction = at.add("Add", [direction, decay], f"{key}.decayed")
            if self.momentum:
                velocity = _input(builder, f"{key}_momentum", parameter)
                state.append(velocity)
                old = at.scaled(at.read(velocity.name), self.momentum, f"{key}.velocity")
                gradient = direction
                name = velocity.name + updated_suffix
                made, direction = at.result("Add", [old, direction], name)
                updated.append((made, parameter))
                if self.nesterov:
                    ahead = at.scaled(direction, self.momentum, f"{key}.ahead")
                    direction = at.add("Add", [gradient, ahead], f"{key}.nesterov")
            change = at.add("Mul", [direction, rate.as_type(parameter.wide)], f"{key}.change")
            made, _ = at.result("Sub", [value, change], key + updated_suffix)
            updated.append((made, parameter))
        return state, updated


@dataclass(frozen=True, kw_only=True)
class Adam:
    """Adam by Kingma and Ba (2014). Coupled decay adds `weight_decay parameter` to the gradient."""

    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    weight_decay: float = 0.0
    decoupled: bool = False
    """Whether the decay is a step of its own (`parameter -= lr weight_decay parameter`)."""
    lr: float = 0.001
    """Suggested value of the learning rate input."""

    def append(
        self,
        builder: Builder,
        parameters: Mapping[str, Trained],
        gradient_suffix: str,
        updated_suffix: str,
    ) -> tuple[list[StateTensor], Updated]:
        """Append the update. Its state is `<parameter>_m` and `<parameter>_v`; `step` counts from 1."""
        kind = _widest(parameters)
        state = [_input(builder, LEARNING_RATE, kind, self.lr), _input(builder, STEP, kind, 1)]
        at = _Arithmetic(builder, kind)
        rest1 = self._bias(at, self.beta1, "beta1")
        made = at.add("Sqrt", [self._bias(at, self.beta2, "beta2")], "adamw.root")
        rest2 = _SharedScalar(builder, made, kind.dtype)
        made = at.add("Div", [LEARNING_RATE, rest1], "adamw.rate")
        rate, keep = _SharedScalar(builder, made, kind.dtype), None
        if self.decoupled:
            decay = at.scaled(LEARNING_RATE, self.weight_decay, "adamw.decay")
            made = at.add("Sub", [at.scalar(1), decay], "adamw.keep")
            keep = _SharedScalar(builder, made, kind.dtype)
        updated: Updated = []
        for key, parameter in parameters.items():
            at = _Arithmetic(builder, parameter)
            first, second = (_input(builder, f"{key}_{name}", parameter) for name in "mv")
            state += [first, second]
            grad, value = at.read(key + gradient_suffix), at.read(parameter.value or key)
            if self.weight_decay and not self.decoupled:
                decay = at.scaled(value, self.weight_decay, f"{key}.decay")
                grad = at.add("Add", [grad, decay], f"{key}.decayed")
            square = at.add("Mul", [grad, grad], f"{key}.square")
            new_m, m = self._average(at, first.name, grad, self.beta1, updated_suffix)
            new_v, v = self._average(at, second.name, square, self.beta2, updated_suffix)
            root = at.add("Sqrt", [v], f"{key}.root")
            scaled = at.add("Div", [root, rest2.as_type(parameter.wide)], f"{key}.scaled")
            padded = at.add("Add", [scaled, at.scalar(self.epsilon)], f"{key}.padded")
            direction = at.add("Div", [m, padded], f"{key}.direction")
            change = at.add("Mul", [direction, rate.as_type(parameter.wide)], f"{key}.change")
            if keep is not None:
                value = at.add("Mul", [value, keep.as_type(parameter.wide)], f"{key}.kept")
            new, _ = at.result("Sub", [value, change], key + updated_suffix)
            updated += [(name, parameter) for name in (new, new_m, new_v)]
        return state, updated

    @staticmethod
    def _bias(at: _Arithmetic, beta: float, tag: str) -> Value:
        """Append `1 - beta ** step`, the bias correction of a moment."""
        power = at.add("Pow", [at.scalar(beta), STEP], f"adamw.{tag}_power")
        return at.add("Sub", [at.scalar(1), power], f"adamw.{tag}_filled")

    @staticmethod
    def _average(
        at: _Arithmetic, old: str, value: Value, beta: float, suffix: str
    ) -> tuple[Value, Value]:
        """Append `beta old + (1 - beta) value`, named `old` with the suffix.

        Returns the rounded result, and the same before rounding.
        """
        kept = at.scaled(at.read(old), beta, f"{old}.kept")
        added = at.scaled(value, 1 - beta, f"{old}.added")
        return at.result("Add", [kept, added], old + suffix)


@dataclass(frozen=True, kw_only=True)
class AdamW(Adam):
    """Adam with decoupled weight decay, by Loshchilov and Hutter (2017)."""

    weight_decay: float = 0.01
    decoupled: bool = True


OPTIMIZERS: dict[str, Optimizer] = {
    "sgd": SGD(),
    "momentum": SGD(momentum=0.9),
    "adam": Adam(),
    "adamw": AdamW(),
}
"""Optimizers by their command-line name, with PyTorch's defaults."""


class _Arithmetic:
    """A writer of nodes that update one parameter, in the type that the update is computed in."""

    def __init__(self, builder: Builder, parameter: Trained) -> None:
        self.builder = builder
        self.stored, self.wide = parameter.dtype, parameter.wide

    def read(self, name: str) -> Value:
        """Return a parameter, gradient or state tensor in the wide type."""
        return _cast(self.builder, name, self.stored, self.wide, f"{name}.as_float")

    def add(self, op_type: str, operands: Sequence[Value], name: str) -> Value:
        return self.builder.add(op_type, operands, name)

    def result(self, op_type: str, operands: Sequence[Value], name: str) -> tuple[Value, Value]:
        """Append a node with the output `name`; return that output, and the same unrounded."""
        if self.stored == self.wide:
            made = self.add(op_type, operands, name)
            return made, made
        made = self.add(op_type, operands, f"{name}.as_float")
        return _cast(self.builder, made, self.wide, self.stored, name), made

    def scalar(self, value: float) -> Value:
        return self.builder.constant(np.array(value, self.wide))

    def scaled(self, value: Value, factor: float, name: str) -> Value:
        return self.add("Mul", [value, self.scalar(factor)], name)


class _SharedScalar:
    """A scalar that every parameter's update reads, in each type that one is computed in."""

    def __init__(self, builder: Builder, name: Value, dtype: np.dtype) -> None:
        self._builder, self._dtype = builder, dtype
        self._made = {dtype: name}

    def as_type(self, dtype: np.dtype) -> Value:
        """Return the scalar as `dtype`, converted once."""
        if dtype not in self._made:
            name = self._made[self._dtype]
            made = _cast(self._builder, name, self._dtype, dtype, f"{name}.{dtype.name}")
            self._made[dtype] = made
        return self._made[dtype]


def _cast(builder: Builder, value: Value, source: np.dtype, target: np.dtype, name: str) -> Value:
    """Return `value` converted to `target`, or itself if the types are equal."""
    if source == target:
        return value
    return builder.add("Cast", [value], name, to=helper.np_dtype_to_tensor_dtype(target))


def _widest(parameters: Mapping[str, Trained]) -> Trained:
    """Return the shape and type of the learning rate: a scalar of the widest type in use."""
    kinds = [parameter.wide for parameter in parameters.values()]
    return Trained(shape=(), dtype=max(kinds, key=lambda kind: kind.itemsize))


def _input(builder: Builder, name: str, like: Trained, initial: float = 0.0) -> StateTensor:
    reserved = builder.reserve(name)
    return StateTensor(name=reserved, shape=like.shape, dtype=like.dtype, initial=initial)

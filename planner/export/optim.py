"""Optimizer steps, appended to a graph of gradients.

The learning rate and the step are inputs, so that a schedule needs no new model. Every state
tensor is an input and, with the suffix of new values, an output. Formulas: PyTorch's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from planner.export.emit import Builder, Value

LEARNING_RATE = "lr"
STEP = "step"


@dataclass(frozen=True, kw_only=True)
class StateTensor:
    """A float input that the optimizer adds, and its value at the first step."""

    name: str
    shape: tuple[int, ...]
    initial: float


Updated = list[tuple[str, Sequence[int]]]
"""Names and shapes of new values."""


class Optimizer(Protocol):
    """Adds its step to a graph in which the gradients have been named."""

    def append(
        self,
        builder: Builder,
        shapes: Mapping[str, Sequence[int]],
        gradient_suffix: str,
        updated_suffix: str,
    ) -> tuple[list[StateTensor], Updated]:
        """The inputs that this step needs, and the outputs that it makes."""
        ...


@dataclass(frozen=True, kw_only=True)
class SGD:
    """`velocity = momentum velocity + gradient; parameter -= lr velocity`."""

    momentum: float = 0.0
    lr: float = 0.01
    """The value suggested for the input."""

    def append(
        self,
        builder: Builder,
        shapes: Mapping[str, Sequence[int]],
        gradient_suffix: str,
        updated_suffix: str,
    ) -> tuple[list[StateTensor], Updated]:
        """State: `<parameter>_momentum`, where there is momentum."""
        state = [_input(builder, LEARNING_RATE, (), self.lr)]
        updated: Updated = []
        for key, shape in shapes.items():
            direction = key + gradient_suffix
            if self.momentum:
                velocity = _input(builder, f"{key}_momentum", shape)
                state.append(velocity)
                old = _scale(builder, velocity.name, self.momentum, f"{key}.velocity")
                name = velocity.name + updated_suffix
                direction = builder.add("Add", [old, direction], name)
                updated.append((direction, shape))
            change = builder.add("Mul", [direction, LEARNING_RATE], f"{key}.change")
            updated.append((builder.add("Sub", [key, change], key + updated_suffix), shape))
        return state, updated


@dataclass(frozen=True, kw_only=True)
class AdamW:
    """Adam with decoupled weight decay: Loshchilov and Hutter (2017)."""

    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    weight_decay: float = 0.01
    lr: float = 0.001
    """The value suggested for the input."""

    def append(
        self,
        builder: Builder,
        shapes: Mapping[str, Sequence[int]],
        gradient_suffix: str,
        updated_suffix: str,
    ) -> tuple[list[StateTensor], Updated]:
        """State: `<parameter>_m` and `<parameter>_v`, the moments. `step` counts from 1."""
        state = [_input(builder, LEARNING_RATE, (), self.lr), _input(builder, STEP, (), 1)]
        rest1 = self._bias(builder, self.beta1, "beta1")
        rest2 = builder.add("Sqrt", [self._bias(builder, self.beta2, "beta2")], "adamw.root")
        rate = builder.add("Div", [LEARNING_RATE, rest1], "adamw.rate")
        decay = _scale(builder, LEARNING_RATE, self.weight_decay, "adamw.decay")
        keep = builder.add("Sub", [_scalar(builder, 1), decay], "adamw.keep")
        updated: Updated = []
        for key, shape in shapes.items():
            first, second = _input(builder, f"{key}_m", shape), _input(builder, f"{key}_v", shape)
            state += [first, second]
            grad = key + gradient_suffix
            square = builder.add("Mul", [grad, grad], f"{key}.square")
            m = self._average(builder, first.name, grad, self.beta1, updated_suffix)
            v = self._average(builder, second.name, square, self.beta2, updated_suffix)
            root = builder.add("Sqrt", [v], f"{key}.root")
            scaled = builder.add("Div", [root, rest2], f"{key}.scaled")
            padded = builder.add("Add", [scaled, _scalar(builder, self.epsilon)], f"{key}.padded")
            direction = builder.add("Div", [m, padded], f"{key}.direction")
            change = builder.add("Mul", [direction, rate], f"{key}.change")
            kept = builder.add("Mul", [key, keep], f"{key}.kept")
            new = builder.add("Sub", [kept, change], key + updated_suffix)
            updated += [(new, shape), (m, shape), (v, shape)]
        return state, updated

    @staticmethod
    def _bias(builder: Builder, beta: float, tag: str) -> Value:
        """`1 - beta ** step`: how much of a moment the steps so far have filled."""
        power = builder.add("Pow", [_scalar(builder, beta), STEP], f"adamw.{tag}_power")
        return builder.add("Sub", [_scalar(builder, 1), power], f"adamw.{tag}_filled")

    @staticmethod
    def _average(builder: Builder, old: str, value: Value, beta: float, suffix: str) -> Value:
        """`beta old + (1 - beta) value`, called `old` with the suffix."""
        kept = _scale(builder, old, beta, f"{old}.kept")
        added = _scale(builder, value, 1 - beta, f"{old}.added")
        return builder.add("Add", [kept, added], old + suffix)


OPTIMIZERS: dict[str, Optimizer] = {
    "sgd": SGD(),
    "momentum": SGD(momentum=0.9),
    "adamw": AdamW(),
}
"""By the name that the command line knows."""


def _input(builder: Builder, name: str, shape: Sequence[int], initial: float = 0.0) -> StateTensor:
    return StateTensor(name=builder.reserve(name), shape=tuple(shape), initial=initial)


def _scalar(builder: Builder, value: float) -> Value:
    return builder.constant(np.array(value, np.float32))


def _scale(builder: Builder, value: Value, factor: float, name: str) -> Value:
    return builder.add("Mul", [value, _scalar(builder, factor)], name)

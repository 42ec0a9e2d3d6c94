"""Record the random numbers that a step draws in PyTorch, as inputs of the graph."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from planner.export.draws import Draw, DrawKind
from planner.export.write.dtypes import array_of, numpy_dtype

_aten = torch.ops.aten


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """One random tensor, in the form that a graph is fed."""

    kind: DrawKind
    values: Tensor


def _arguments(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return an operator's arguments by name, defaults included."""
    return {
        argument.name: args[place]
        if place < len(args)
        else kwargs.get(argument.name, argument.default_value)
        for place, argument in enumerate(func._schema.arguments)
    }


def _standard(kind: DrawKind, drawn: Tensor, given: Mapping[str, Any]) -> Tensor:
    """Return a drawn tensor in the standard form that a graph is fed.

    A `bernoulli` is its truth values; other numbers are in [0, 1), or of mean 0 and deviation 1. The
    rules of `planner.export.aten.random` compute the drawn values from these.
    """
    if kind == "bernoulli":
        return drawn != 0
    if "lambd" in given:
        return -torch.expm1(-given["lambd"] * drawn.double())
    if "n" in given:
        falling = 1 - (torch.arange(given["n"]) + 0.5) / given["n"]
        return torch.empty_like(falling).scatter(0, drawn, falling)
    if "high" in given:
        low = given.get("low", 0)
        return (drawn.double() - low + 0.5) / (given["high"] - low)
    if "std" in given:
        first, width = given["mean"], given["std"]
    elif "to" in given:
        first, width = given["from"], given["to"] - given["from"]
    else:
        return drawn
    return (drawn - first) / width if width else torch.zeros_like(drawn)


class Draws(TorchDispatchMode):
    """A mode that records random numbers in the order drawn.

    Attributes:
        found: random tensors that a graph can be fed.
        others: random operators for which a graph has no input.
    """

    def __init__(self) -> None:
        super().__init__()
        self.found: list[Drawn] = []
        self.others: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        kind = _KINDS.get(func.overloadpacket)
        if kind is None and torch.Tag.nondeterministic_seeded not in func.tags:
            return result
        given = _arguments(func, args, kwargs)
        if kind is not None:
            values = _standard(kind, result, given).detach().clone()
            self.found.append(Drawn(kind=kind, values=values))
        elif given.get("dropout_p") != 0:  # attention without dropout draws nothing
            self.others.add(str(func.overloadpacket))
        return result

    def feeds(self, draws: Sequence[Draw]) -> dict[str, np.ndarray] | None:
        """Return a feed for each input, the next recorded tensor of its kind and shape.

        None means that the numbers of recorded tensors and inputs differ.
        """
        drawn_of = Counter((drawn.kind, tuple(drawn.values.shape)) for drawn in self.found)
        wanted = Counter((draw.kind, tuple(draw.recipe().shape)) for draw in draws)
        if any(drawn_of[kind] != count for kind, count in wanted.items()):
            return None
        feeds: dict[str, np.ndarray] = {}
        left = iter(self.found)
        for draw in draws:
            recipe = draw.recipe()
            for drawn in left:
                if drawn.kind == draw.kind and tuple(drawn.values.shape) == recipe.shape:
                    feeds[draw.name] = array_of(drawn.values).astype(numpy_dtype(draw.dtype))
                    break
            else:
                return None
        return feeds


_KINDS: dict[Any, DrawKind] = {
    _aten.bernoulli: "bernoulli",
    _aten.bernoulli_: "bernoulli",
    _aten.exponential: "uniform",
    _aten.exponential_: "uniform",
    _aten.rand: "uniform",
    _aten.rand_like: "uniform",
    _aten.randint: "uniform",
    _aten.randint_like: "uniform",
    _aten.randperm: "uniform",
    _aten.uniform_: "uniform",
    _aten.randn: "normal",
    _aten.randn_like: "normal",
    _aten.normal_: "normal",
}

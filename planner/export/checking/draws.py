"""The random numbers that a step draws in PyTorch, as the inputs that a graph has for them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from planner.export.draws import Draw, DrawKind
from planner.export.dtypes import array_of, numpy_dtype

_aten = torch.ops.aten


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """One random tensor: what a graph would be fed in its place."""

    kind: DrawKind
    values: Tensor


def _is_idle(func: Any, args: Sequence[Any], kwargs: Any) -> bool:
    """Whether an operator that may draw does not: attention without dropout."""
    names = [argument.name for argument in func._schema.arguments]
    if "dropout_p" not in names:
        return False
    place = names.index("dropout_p")
    return not kwargs.get("dropout_p", args[place] if len(args) > place else 0.0)


def _standard(low: float, width: float) -> Callable[[Tensor], Tensor]:
    return lambda found: (found - low) / width if width else torch.zeros_like(found)


def _given(args: Sequence[Any], kwargs: Any, *defaults: tuple[str, float]) -> list[float]:
    """Numbers that come behind the tensor, by place or by name."""
    return [
        float(kwargs.get(name, args[place] if len(args) > place else default))
        for place, (name, default) in enumerate(defaults, start=1)
    ]


class Draws(TorchDispatchMode):
    """Keeps what is drawn, in order.

    Attributes:
        found: what a graph can be fed.
        others: operators that draw what no input stands for.
    """

    def __init__(self) -> None:
        super().__init__()
        self.found: list[Drawn] = []
        self.others: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        kind = _KINDS.get(func.overloadpacket)
        if kind == "bernoulli":
            self._keep(kind, result != 0)
        elif kind == "uniform":
            low, high = _given(args, kwargs, ("from", 0.0), ("to", 1.0))
            is_ranged = func.overloadpacket is _aten.uniform_
            self._keep(kind, _standard(low, high - low)(result) if is_ranged else result)
        elif kind == "normal":
            mean, deviation = _given(args, kwargs, ("mean", 0.0), ("std", 1.0))
            is_ranged = func.overloadpacket is _aten.normal_
            self._keep(kind, _standard(mean, deviation)(result) if is_ranged else result)
        elif torch.Tag.nondeterministic_seeded in func.tags and not _is_idle(func, args, kwargs):
            self.others.add(str(func.overloadpacket))
        return result

    def _keep(self, kind: DrawKind, values: Tensor) -> None:
        self.found.append(Drawn(kind=kind, values=values.detach().clone()))

    def feeds(self, draws: Sequence[Draw]) -> dict[str, np.ndarray] | None:
        """Values for the inputs of a graph, each what was drawn next of its kind and shape; None where
        there are not as many of both."""
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
    _aten.rand: "uniform",
    _aten.rand_like: "uniform",
    _aten.uniform_: "uniform",
    _aten.randn: "normal",
    _aten.randn_like: "normal",
    _aten.normal_: "normal",
}

"""Random tensors that are inputs of the graph, where it is not to draw them itself.

Each is of a fixed kind, and the graph makes of it what the operator draws:

    bernoulli   True with a chance
    uniform     in [0, 1)
    normal      of mean 0 and deviation 1

Without PyTorch's generator and ONNX Runtime's, whose numbers differ, both can be given the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from planner.export.inputs import InputSpec

DrawKind = Literal["bernoulli", "uniform", "normal"]

Random = Literal["graph", "inputs"]
"""Who draws random tensors: the graph, each time from seeds of its own, or who feeds it."""


@dataclass(frozen=True, kw_only=True)
class Draw:
    """A random tensor to feed.

    Attributes:
        chance: of True, in a `bernoulli`.
    """

    name: str
    dims: Sequence[int | torch.SymInt]
    dtype: torch.dtype
    kind: DrawKind
    chance: float = 0.5

    def recipe(self) -> InputSpec:
        """How to draw it, of the size that the examples have."""
        shape = tuple(d if isinstance(d, int) else int(d.node.hint) for d in self.dims)
        dtype = str(self.dtype).removeprefix("torch.")
        if self.kind == "bernoulli":
            return InputSpec(shape=shape, dtype=dtype, kind="bernoulli", chance=self.chance)
        return InputSpec(shape=shape, dtype=dtype, kind=self.kind)

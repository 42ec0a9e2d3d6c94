"""Random tensors that are inputs of the graph, for graphs that draw no random numbers themselves.

Each has one of three kinds, from which the graph computes the random values of an operator:

    bernoulli   True with a given probability
    uniform     in [0, 1)
    normal      of mean 0 and deviation 1

PyTorch's and ONNX Runtime's generators give different numbers; as inputs, both can be given the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from planner.export.inputs import InputSpec

DrawKind = Literal["bernoulli", "uniform", "normal"]

Random = Literal["graph", "inputs"]
"""Source of random tensors: the graph, which draws new seeds in each run, or its inputs."""


@dataclass(frozen=True, kw_only=True)
class Draw:
    """A random tensor to feed.

    Attributes:
        chance: probability of True in a `bernoulli`.
    """

    name: str
    dims: Sequence[int | torch.SymInt]
    dtype: torch.dtype
    kind: DrawKind
    chance: float = 0.5

    def recipe(self) -> InputSpec:
        """Return the recipe that draws it, in the examples' size."""
        shape = tuple(d if isinstance(d, int) else int(d.node.hint) for d in self.dims)
        dtype = str(self.dtype).removeprefix("torch.")
        if self.kind == "bernoulli":
            return InputSpec(shape=shape, dtype=dtype, kind="bernoulli", chance=self.chance)
        return InputSpec(shape=shape, dtype=dtype, kind=self.kind)

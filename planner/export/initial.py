"""Recipes for the initial values of a network's parameters and buffers.

The recipe is the single source: both the graph's inputs and the module that checks the graph are drawn
from it, without PyTorch's random state. A network may choose the standard deviation of its weights with a
method `initial_std(parameter name) -> float`; the default is that of He et al. (2015).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from torch import Tensor, nn

from planner.export.inputs import InputSpec
from planner.export.write.dtypes import as_real, numpy_dtype


def initial_specs(module: nn.Module) -> dict[str, InputSpec]:
    """Return a recipe for every parameter and buffer, under the first of its names."""
    return {name: _spec(module, owner, name, tensor) for name, owner, tensor in _tensors(module)}


def _tensors(module: nn.Module) -> Iterator[tuple[str, nn.Module, Tensor]]:
    """Yield the name, owning submodule and tensor of each parameter and buffer, once each."""
    for named in (module.named_parameters(), module.named_buffers()):
        for name, tensor in named:
            yield name, module.get_submodule(name.rpartition(".")[0]), tensor


def _spec(module: nn.Module, owner: nn.Module, name: str, tensor: Tensor) -> InputSpec:
    is_vector, tensor = tensor.dim() < 2, as_real(tensor)
    shape, dtype = tuple(tensor.shape), numpy_dtype(tensor.dtype).name
    if is_vector:
        one = name.endswith(("running_var", "weight")) and isinstance(
            owner, nn.LayerNorm | nn.modules.batchnorm._BatchNorm
        )
        return InputSpec(shape=shape, dtype=dtype, kind="const", value=float(one))
    choose: Callable[[str], float] | None = getattr(module, "initial_std", None)
    if choose is not None:
        std = choose(name)
    elif isinstance(owner, nn.Embedding):
        std = 1.0
    else:
        # A transposed convolution's weight is [in, out, ...], and its strides share the kernel.
        out = 1 if isinstance(owner, nn.ConvTranspose2d) else 0
        std = math.sqrt(2 / max(math.prod(shape[:out] + shape[out + 1 :]), 1))
    return InputSpec(shape=shape, dtype=dtype, kind="normal", std=float(f"{std:.6g}"))

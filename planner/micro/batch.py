"""Find a model's batch dim, the inputs that carry it, and its divisors; cut inputs into parts of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from planner.errors import ModelError, UsageError
from planner.onnxio.dims import dims_of, symbolic_dims
from planner.onnxio.load import LoadedModel

_USUAL = ("batch", "batch_size", "batchsize", "bs", "n", "b")
"""Usual names of a batch dim, the clearest first."""

_SHOWN = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """The batch of a model.

    Attributes:
        dim: the name of the open dim; `size` is its bound value.
        inputs: the batch axis of each graph input that carries it, by name.
    """

    dim: str
    size: int
    inputs: Mapping[str, int]


def batch_of(loaded: LoadedModel) -> Batch:
    """Find the batch of a model whose dims are bound.

    The batch is the only open dim that comes first in an input; of several, the one with a usual name.

    Raises:
        ModelError: the file fixes the batch, or an input has it on two axes.
        UsageError: several dims may be the batch.
    """
    model, path = loaded.model, loaded.path
    shapes = (dims_of(v) for v in model.graph.inputs)
    first = dict.fromkeys(shape[0] for shape in shapes if shape and isinstance(shape[0], str))
    if not first:
        known = ", ".join(sorted(symbolic_dims(model)))
        has = f"its dims {known} stand first in no input" if known else "all of its dims are fixed"
        raise ModelError(
            f"{path} has no symbolic batch ({has}), so it cannot run on a part of the batch; "
            "export it with one (planner export --dynamic-batch, or dynamic_axes / "
            "dynamic_shapes of torch.onnx.export) and bind it with --dim batch=N"
        )
    named = sorted(
        (name for name in first if name.lower() in _USUAL), key=lambda n: _USUAL.index(n.lower())
    )
    if len(first) > 1 and not named:
        raise UsageError(
            f"--micro-batch: the dims {', '.join(first)} are each the first axis of an input, and "
            "none is called batch; give the one that counts samples the name 'batch' in the "
            "export"
        )
    dim = named[0] if named else next(iter(first))
    return Batch(dim=dim, size=loaded.dims[dim], inputs=_carriers(model, dim))


def _carriers(model: ir.Model, dim: str) -> dict[str, int]:
    found: dict[str, int] = {}
    for value in model.graph.inputs:
        axes = [axis for axis, called in enumerate(dims_of(value)) if called == dim]
        if len(axes) > 1:
            raise ModelError(
                f"input {value.name!r} has the batch {dim!r} on two axes, a row for each pair of "
                "samples: micro-batches have other pairs, so their result would differ"
            )
        if axes:
            found[str(value.name)] = axes[0]
    return found


def divisors(size: int) -> list[int]:
    """Return the divisors of `size` in ascending order, 1 and `size` included."""
    low = [k for k in range(1, int(size**0.5) + 1) if size % k == 0]
    return sorted({*low, *(size // k for k in low)})


def check_runs(runs: int, batch: Batch) -> None:
    """Raise UsageError where a batch cannot be divided into `runs` parts of equal size."""
    if runs >= 1 and batch.size % runs == 0:
        return
    all_of_them = divisors(batch.size)
    fit = ", ".join(map(str, all_of_them[:_SHOWN])) + (", ..." if len(all_of_them) > _SHOWN else "")
    raise UsageError(
        f"--micro-batch {runs}: the batch of {batch.size} ({batch.dim}={batch.size}) does not "
        f"divide into {runs} parts of equal size; these numbers divide it: {fit}"
    )


Array = npt.NDArray[Any]


def part(
    feeds: Mapping[str, Array], axes: Mapping[str, int], start: int, stop: int
) -> dict[str, Array]:
    """Return the inputs of the samples from `start` up to `stop`; inputs without the batch stay whole.

    Args:
        axes: the batch axis of each input that carries the batch, by name.
    """
    return {
        name: np.ascontiguousarray(np.take(array, range(start, stop), axis=axes[name]))
        if name in axes
        else array
        for name, array in feeds.items()
    }


def reordered(feeds: Mapping[str, Array], axes: Mapping[str, int]) -> dict[str, Array]:
    """Return the inputs with the samples in reverse order."""
    return {
        name: np.ascontiguousarray(np.flip(array, axis=axes[name])) if name in axes else array
        for name, array in feeds.items()
    }

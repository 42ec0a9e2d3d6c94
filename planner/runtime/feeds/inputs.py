"""Inputs for a run of a model: the user's, the model's sidecar, or seeded ones.

The first source that exists is used: an `.npz` given by the user; a sidecar `<stem>.inputs.json`
beside the model, with a recipe for each input (`planner.runtime.feeds.sidecar`); values drawn from the
seed. All three are deterministic. Inputs that do not fit into this machine's memory are refused.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from planner.errors import ModelError, UsageError
from planner.onnxio.dims import dims_of
from planner.onnxio.load import read_model
from planner.runtime.arrays import is_narrow, is_raw
from planner.runtime.feeds.npz import read_arrays
from planner.runtime.feeds.sidecar import read_recipes, recipe_of
from planner.runtime.timing import available_bytes
from planner.units import check_seed, format_bytes

Array = npt.NDArray[Any]
Dim = int | str
_UNFEEDABLE = "onnxruntime's Python interface takes no such array; plan it with --no-verify"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunInput:
    """An input that a run needs. A `str` dim is open: its name, or its position (`x:0`)."""

    name: str
    dtype: np.dtype[Any]
    dims: tuple[Dim, ...]


def make_inputs(
    model_path: Path,
    seed: int = 0,
    dims: Mapping[str, int] | None = None,
    feeds_path: Path | None = None,
) -> tuple[dict[str, Array], str]:
    """Return arrays for the model's inputs, and one sentence on their source.

    Inputs that are initializers as well are left to the model. External data is not read.

    Args:
        seed: for inputs that neither `feeds_path` nor a sidecar gives.
        dims: sizes of open dims.
        feeds_path: an `.npz` with one array per input.

    Raises:
        UsageError: a feed is missing, its type or shape is not the model's, or a dim is unbound.
        ModelError: an input cannot be fed.
    """
    check_seed(seed)
    model_path = Path(model_path)
    specs = input_specs(model_path)
    bound = dict(dims or {})
    check_room(specs, bound)
    if feeds_path is not None:
        return _from_npz(specs, bound, Path(feeds_path)), f"arrays of {Path(feeds_path).name}"
    sidecar = model_path.with_name(f"{model_path.stem}.inputs.json")
    if sidecar.is_file():
        return _from_sidecar(specs, bound, sidecar, seed)
    arrays = {s.name: _seeded(s.name, s.dtype, _bind(s, bound), seed) for s in specs}
    return arrays, f"random values from seed {seed}"


def input_specs(model_path: Path) -> tuple[RunInput, ...]:
    """Return the inputs that a run needs, in the model's order."""
    try:
        graph = read_model(model_path).graph
    except Exception as error:
        raise ModelError(f"{model_path} cannot be read as an ONNX model: {error}") from error
    specs: list[RunInput] = []
    for value in graph.inputs:
        name = str(value.name)
        if name in graph.initializers:
            continue
        if value.dtype is None or value.shape is None:
            raise ModelError(f"input {name!r} is not a tensor with a shape; it cannot be fed")
        dtype = np.dtype(np.str_) if value.dtype == ir.DataType.STRING else value.dtype.numpy()
        if dtype.kind not in "fiubcU" and not is_narrow(dtype):
            raise ModelError(f"input {name!r} is {value.dtype.name}: {_UNFEEDABLE}")
        shape = tuple(d for d in dims_of(value) if d is not None)
        specs.append(RunInput(name=name, dtype=dtype, dims=shape))
    return tuple(specs)


def check_room(specs: Iterable[RunInput], dims: Mapping[str, int]) -> None:
    """Raise UsageError where the inputs take more memory than is free, before any is made.

    Inputs with a dim that `dims` does not bind are left out.
    """
    needed = sum(
        math.prod(d if isinstance(d, int) else dims[d] for d in spec.dims) * spec.dtype.itemsize
        for spec in specs
        if all(isinstance(d, int) or d in dims for d in spec.dims)
    )
    check_memory(needed, "the model's inputs")


def check_memory(needed: int, what: str) -> None:
    """Raise UsageError where `needed` bytes are more than this machine has free."""
    available = available_bytes()
    if available is not None and needed > available:
        raise UsageError(
            f"{what} take {format_bytes(needed)}, and {format_bytes(available)} of memory are free "
            "here: the model cannot be run on this machine (plan it with --no-verify)"
        )


def _bind(spec: RunInput, dims: Mapping[str, int]) -> tuple[int, ...]:
    bound: list[int] = []
    for dim in spec.dims:
        if isinstance(dim, int):
            bound.append(dim)
        elif dim in dims:
            bound.append(dims[dim])
        else:
            raise UsageError(
                f"input {spec.name!r} has the open dim {dim!r}; give it a size with --dim {dim}=N"
            )
    return tuple(bound)


def _check_shape(spec: RunInput, shape: tuple[int, ...], dims: Mapping[str, int], at: str) -> None:
    wanted = [d if isinstance(d, int) else dims.get(d, d) for d in spec.dims]
    fits = len(shape) == len(wanted) and all(
        isinstance(w, str) or w == s for w, s in zip(wanted, shape, strict=True)
    )
    if not fits:
        raise UsageError(f"{at}: input {spec.name!r} has shape {list(shape)}, the model {wanted}")


def _from_npz(specs: tuple[RunInput, ...], dims: Mapping[str, int], path: Path) -> dict[str, Array]:
    by_name = {spec.name: spec for spec in specs}

    def check(name: str, dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
        spec = by_name[name]
        is_text = dtype.kind == spec.dtype.kind == "U"
        if dtype != spec.dtype and not is_text and not is_raw(dtype, spec.dtype):
            raise UsageError(f"{path}: input {name!r} is {dtype}, the model wants {spec.dtype}")
        _check_shape(spec, shape, dims, str(path))

    arrays = read_arrays(path, by_name, check)
    return {n: a.view(by_name[n].dtype) if a.dtype.kind == "V" else a for n, a in arrays.items()}


def _from_sidecar(
    specs: tuple[RunInput, ...], dims: Mapping[str, int], path: Path, seed: int
) -> tuple[dict[str, Array], str]:
    """Return arrays by recipe; an input without one gets random values, and the sentence says which."""
    recipes = read_recipes(path)
    arrays: dict[str, Array] = {}
    seeded: list[str] = []
    for spec in specs:
        if spec.name not in recipes:
            arrays[spec.name] = _seeded(spec.name, spec.dtype, _bind(spec, dims), seed)
            seeded.append(spec.name)
            continue
        recipe = recipe_of(spec.name, recipes[spec.name], path)
        if recipe.dtype != spec.dtype:
            raise UsageError(
                f"{path}: input {spec.name!r} is {recipe.dtype}, the model wants {spec.dtype}"
            )
        known = all(isinstance(d, int) or d in dims for d in spec.dims)
        # the sidecar's shape is an example of an open one; bound dims take precedence
        shape = recipe.entry.shape
        if known and any(isinstance(d, str) for d in spec.dims):
            shape = _bind(spec, dims)
        _check_shape(spec, shape, dims, str(path))
        check_memory(math.prod(shape) * spec.dtype.itemsize, f"input {spec.name!r}")
        arrays[spec.name] = recipe.draw(shape)
    source = f"recipes of {path.name}"
    if seeded:
        source += f"; random values from seed {seed} for {', '.join(seeded[:3])}"
        source += f" and {len(seeded) - 3} more" if len(seeded) > 3 else ""
    return arrays, source


def _seeded(name: str, dtype: np.dtype[Any], shape: tuple[int, ...], seed: int) -> Array:
    """Draw values on which training graphs run without overflow or an index out of range.

    Matrices and higher: N(0, s²) with s = 1/√(elements per row) within [0.02, 1]. Vectors and
    scalars, which may be variances or rates: |N(0, 0.1²)|. Integers, which may be indices: 0 or 1.
    Strings: one of a few letters.
    """
    generator = np.random.Generator(np.random.PCG64([seed, zlib.crc32(name.encode())]))
    if dtype.kind == "b":
        return np.zeros(shape, dtype)
    if dtype.kind == "U":
        return generator.choice(np.array(["a", "b", "c", "d"]), shape)
    if dtype.kind in "iu":
        return generator.integers(0, 2, shape).astype(dtype)
    sample = generator.standard_normal(shape, dtype=np.float32)
    if len(shape) < 2:
        return np.asarray(np.abs(sample) * np.float32(0.1), dtype)
    fan_in = max(1, math.prod(shape[1:]))
    return np.asarray(sample * np.float32(min(1.0, max(0.02, fan_in**-0.5))), dtype)

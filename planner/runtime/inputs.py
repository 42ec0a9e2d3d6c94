"""Inputs for a run of a model: the user's, the model's sidecar, or seeded ones.

In this order: an `.npz` given by the user; a sidecar `<stem>.inputs.json` beside the model, which
says how each input is made; else values drawn from the seed. All three are deterministic.

Sidecar: `{input name: {"dtype", "shape", "kind", ...}}`, with the kinds

    const     "value"
    normal    "std", "mean" (default 0)
    randint   "high", "low" (default 0): integers in [low, high)

drawn from numpy's PCG64 seeded with crc32(input name), so that one input can be made alone.
"""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from planner.errors import ModelError, UsageError

Array = npt.NDArray[Any]
Dim = int | str
_UNFEEDABLE = "onnxruntime's Python interface takes no such array"


@dataclass(frozen=True, slots=True, kw_only=True)
class InputSpec:
    """One input that a run must be given. A `str` dim is symbolic; "" is one without a name."""

    name: str
    dtype: np.dtype[Any]
    dims: tuple[Dim, ...]


def make_inputs(
    model_path: Path,
    seed: int = 0,
    dims: Mapping[str, int] | None = None,
    feeds_path: Path | None = None,
) -> tuple[dict[str, Array], str]:
    """Arrays for the model's inputs, and one sentence saying where they come from.

    Inputs that are initializers as well are left to the model. External data is not read.

    Args:
        seed: for inputs that neither `feeds_path` nor a sidecar gives.
        dims: values of symbolic dims.
        feeds_path: an `.npz` with one array per input.

    Raises:
        UsageError: a feed is missing, or its type or shape is not the model's; an unbound dim.
        ModelError: an input that cannot be fed.
    """
    model_path = Path(model_path)
    specs = input_specs(model_path)
    bound = dict(dims or {})
    if feeds_path is not None:
        return _from_npz(specs, bound, Path(feeds_path)), f"arrays of {Path(feeds_path).name}"
    sidecar = model_path.with_name(f"{model_path.stem}.inputs.json")
    if sidecar.is_file():
        return _from_sidecar(specs, bound, sidecar, seed)
    arrays = {s.name: _seeded(s.name, s.dtype, _bind(s, bound), seed) for s in specs}
    return arrays, f"random values from seed {seed}"


def input_specs(model_path: Path) -> tuple[InputSpec, ...]:
    """The inputs that a run must be given, in the model's order."""
    try:
        graph = ir.load(model_path).graph
    except Exception as error:
        raise ModelError(f"{model_path} cannot be read as an ONNX model: {error}") from error
    specs: list[InputSpec] = []
    for value in graph.inputs:
        name = str(value.name)
        if name in graph.initializers:
            continue
        if value.dtype is None or value.shape is None:
            raise ModelError(f"input {name!r} is not a tensor with a shape; it cannot be fed")
        dtype = value.dtype.numpy()
        if dtype.kind not in "fiubc":
            raise ModelError(f"input {name!r} is {value.dtype.name}: {_UNFEEDABLE}")
        shape = tuple(d if isinstance(d, int) else str(d.value or "") for d in value.shape)
        specs.append(InputSpec(name=name, dtype=dtype, dims=shape))
    return tuple(specs)


def _bind(spec: InputSpec, dims: Mapping[str, int]) -> tuple[int, ...]:
    bound: list[int] = []
    for dim in spec.dims:
        if isinstance(dim, int):
            bound.append(dim)
        elif dim in dims:
            bound.append(dims[dim])
        else:
            raise UsageError(
                f"input {spec.name!r} has the symbolic dim {dim or '?'!r}; bind it with "
                f"--dim {dim or 'NAME'}=N"
            )
    return tuple(bound)


def _check_shape(spec: InputSpec, shape: tuple[int, ...], dims: Mapping[str, int], at: str) -> None:
    wanted = [d if isinstance(d, int) else dims.get(d, d or "?") for d in spec.dims]
    fits = len(shape) == len(wanted) and all(
        isinstance(w, str) or w == s for w, s in zip(wanted, shape, strict=True)
    )
    if not fits:
        raise UsageError(f"{at}: input {spec.name!r} has shape {list(shape)}, the model {wanted}")


def _from_npz(
    specs: tuple[InputSpec, ...], dims: Mapping[str, int], path: Path
) -> dict[str, Array]:
    try:
        with np.load(path, allow_pickle=False) as data:
            found = {name: data[name] for name in data.files}
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} cannot be read as an .npz of arrays: {error}") from error
    arrays: dict[str, Array] = {}
    for spec in specs:
        if spec.name not in found:
            raise UsageError(f"{path} has no array for the model's input {spec.name!r}")
        array = found[spec.name]
        if array.dtype != spec.dtype:
            raise UsageError(
                f"{path}: input {spec.name!r} is {array.dtype}, the model wants {spec.dtype}"
            )
        _check_shape(spec, array.shape, dims, str(path))
        arrays[spec.name] = array
    return arrays


def _from_sidecar(
    specs: tuple[InputSpec, ...], dims: Mapping[str, int], path: Path, seed: int
) -> tuple[dict[str, Array], str]:
    """Arrays by recipe; an input without one gets random values, and the sentence says so."""
    try:
        recipes = json.loads(path.read_text())
    except ValueError as error:
        raise UsageError(f"{path} is not JSON: {error}") from error
    arrays: dict[str, Array] = {}
    seeded: list[str] = []
    for spec in specs:
        recipe = recipes.get(spec.name)
        if recipe is None:
            arrays[spec.name] = _seeded(spec.name, spec.dtype, _bind(spec, dims), seed)
            seeded.append(spec.name)
            continue
        if np.dtype(recipe["dtype"]) != spec.dtype:
            raise UsageError(
                f"{path}: input {spec.name!r} is {recipe['dtype']}, the model wants {spec.dtype}"
            )
        known = all(isinstance(d, int) or d in dims for d in spec.dims)
        # the sidecar's shape is one example of a symbolic one; a bound dim goes before it
        shape = tuple(recipe["shape"])
        if known and any(isinstance(d, str) for d in spec.dims):
            shape = _bind(spec, dims)
        _check_shape(spec, shape, dims, str(path))
        arrays[spec.name] = _from_recipe(spec.name, recipe, spec.dtype, shape, path)
    source = f"recipes of {path.name}"
    if seeded:
        source += f"; random values from seed {seed} for {', '.join(seeded[:3])}"
        source += f" and {len(seeded) - 3} more" if len(seeded) > 3 else ""
    return arrays, source


def _from_recipe(
    name: str, recipe: Mapping[str, Any], dtype: np.dtype[Any], shape: tuple[int, ...], path: Path
) -> Array:
    kind = recipe.get("kind")
    if kind == "const":
        return np.full(shape, recipe["value"], dtype)
    generator = np.random.Generator(np.random.PCG64(zlib.crc32(name.encode())))
    if kind == "normal":
        sample = generator.standard_normal(shape, dtype=np.float32)
        return np.asarray(
            sample * np.float32(recipe["std"]) + np.float32(recipe.get("mean", 0)), dtype
        )
    if kind == "randint":
        sample = generator.integers(recipe.get("low", 0), recipe["high"], shape)
        return np.asarray(sample, dtype)
    raise UsageError(f"{path}: input {name!r} has the unknown kind {kind!r}")


def _seeded(name: str, dtype: np.dtype[Any], shape: tuple[int, ...], seed: int) -> Array:
    """Values that training graphs run on without overflow or an index out of range.

    Matrices and higher: N(0, s²) with s = 1/√(elements per row) within [0.02, 1]. Vectors and
    scalars, which may be variances or rates: |N(0, 0.1²)|. Integers, which may be indices: 0 or 1.
    """
    generator = np.random.Generator(np.random.PCG64([seed, zlib.crc32(name.encode())]))
    if dtype.kind == "b":
        return np.zeros(shape, dtype)
    if dtype.kind in "iu":
        return generator.integers(0, 2, shape).astype(dtype)
    sample = generator.standard_normal(shape, dtype=np.float32)
    if len(shape) < 2:
        return np.asarray(np.abs(sample) * np.float32(0.1), dtype)
    fan_in = max(1, math.prod(shape[1:]))
    return np.asarray(sample * np.float32(min(1.0, max(0.02, fan_in**-0.5))), dtype)

"""Recipes for a graph's inputs, stored in `NAME.inputs.json` beside a model.

A recipe says how to draw each input, in far fewer bytes than a file of weights. Everyone who follows it
gets the same bytes: it uses numpy's PCG64, seeded by the CRC-32 of the input's name. This module needs
numpy only.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

Kind = Literal["const", "normal", "randint", "uniform", "bernoulli"]


@dataclass(frozen=True, slots=True, kw_only=True)
class InputSpec:
    """Recipe of one input."""

    shape: tuple[int, ...]
    dtype: str
    """Numpy name of the element type."""
    kind: Kind
    value: float = 0.0
    """Value of every element of a `const`."""
    std: float = 1.0
    """Standard deviation of a `normal`, whose mean is zero."""
    high: int = 2
    """Exclusive upper bound of a `randint`, whose lower bound is zero."""
    chance: float = 0.5
    """Probability of a one in a `bernoulli`. A `uniform` is in [0, 1)."""

    def draw(self, name: str) -> np.ndarray:
        """Draw the array for the input called `name`."""
        if self.kind == "const":
            return np.full(self.shape, self.value, self.dtype)
        generator = np.random.Generator(np.random.PCG64(zlib.crc32(name.encode())))
        if self.kind == "normal":
            sample = generator.standard_normal(self.shape, dtype=np.float32)
            return np.asarray(sample * np.float32(self.std)).astype(self.dtype)
        if self.kind in ("uniform", "bernoulli"):
            sample = generator.random(self.shape, dtype=np.float32)
            drawn = sample if self.kind == "uniform" else sample < np.float32(self.chance)
            return np.asarray(drawn).astype(self.dtype)
        return np.asarray(generator.integers(0, self.high, self.shape)).astype(self.dtype)

    def to_json(self) -> dict[str, Any]:
        """Return the entry in the file: the fields that this kind uses."""
        entry: dict[str, Any] = {
            "shape": list(self.shape),
            "dtype": self.dtype,
            "kind": self.kind,
        }
        fields = {"const": "value", "normal": "std", "randint": "high", "bernoulli": "chance"}
        field = fields.get(self.kind)
        return entry | ({field: getattr(self, field)} if field else {})

    @staticmethod
    def from_json(entry: Mapping[str, Any]) -> InputSpec:
        """Read an entry written by `to_json`."""
        return InputSpec(**{**entry, "shape": tuple(entry["shape"])})


def write_specs(path: Path, specs: Mapping[str, InputSpec]) -> None:
    """Write the recipe of every input, one line each."""
    lines = [f'"{name}": {json.dumps(spec.to_json())}' for name, spec in specs.items()]
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def read_specs(path: Path) -> dict[str, InputSpec]:
    """Read the recipes written by `write_specs`."""
    entries = json.loads(path.read_text(encoding="utf-8"))
    return {name: InputSpec.from_json(entry) for name, entry in entries.items()}


def draw_inputs(specs: Mapping[str, InputSpec]) -> dict[str, np.ndarray]:
    """Draw every input, ready to feed to a session."""
    return {name: spec.draw(name) for name, spec in specs.items()}

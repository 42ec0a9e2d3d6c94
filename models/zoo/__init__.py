"""Small training graphs, committed: `path(name)` is the model, `feeds(name)` its inputs.

`python -m models.zoo` builds them again, byte for byte. Reading them needs numpy only.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from planner.export.inputs import draw_inputs, read_specs

NAMES = ("mlp_adamw", "resnet18", "gpt")

_FOLDER = Path(__file__).parent


def path(name: str) -> Path:
    """Return the path of the ONNX file."""
    return _FOLDER / f"{name}.onnx"


def sidecar(name: str) -> Path:
    """Return the path of the recipe of its inputs."""
    return _FOLDER / f"{name}.inputs.json"


def feeds(name: str) -> dict[str, np.ndarray]:
    """Return an array for each of its inputs, always the same."""
    return draw_inputs(read_specs(sidecar(name)))

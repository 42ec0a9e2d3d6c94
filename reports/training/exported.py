"""Operators of the training graphs that come from PyTorch, of every network of `models.recipes`."""

from __future__ import annotations

import tempfile
from pathlib import Path

import onnx

from models.build import main as build
from planner.onnxio.load import load_model
from planner.runtime.optimizers.normalize import normalize
from reports.training.coverage import Key, operators

_IMAGES = "--batch 2 --width 8 --image-size 32 --classes 10"
_TOKENS = "--batch 2 --seq 16 --width 32 --layers 2 --heads 2 --vocabulary 64 --dropout 0.1"
SIZES = {
    "mlp": "--batch 4 --width 16",
    "resnet18": _IMAGES,
    "resnet50": _IMAGES,
    "densenet121": _IMAGES,
    "unet": "--batch 1 --width 8 --image-size 32",
    "gpt2": _TOKENS,
    "bert": _TOKENS,
}
"""Arguments of `models.build`: small sizes, the same operators."""


def exported_operators() -> dict[str, list[Key]]:
    """Operators by network, of the graph as exported, with AdamW, and as ONNX Runtime optimizes it."""
    found: dict[str, list[Key]] = {}
    with tempfile.TemporaryDirectory(prefix="planner-") as folder:
        path = Path(folder) / "step.onnx"
        for name, size in SIZES.items():
            arguments = [name, *size.split(), "--optimizer", "adamw", "-o", str(path)]
            if build(arguments):
                raise SystemExit(f"{name} was not built")
            keys = operators([onnx.load(path)])
            optimized = normalize(load_model(path))
            imports = optimized.graph.opset_imports
            keys |= {(n.domain, n.op_type, imports[n.domain]) for n in optimized.graph}
            found[name] = sorted(keys)
    return found

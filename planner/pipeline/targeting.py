"""Which target a file was written for: planner's own files say so in their metadata."""

from __future__ import annotations

from pathlib import Path

import onnx_ir as ir

from planner.errors import ModelError
from planner.targets import Target

TARGET_KEY = "pkg.planner.target"


def check_target(model: ir.Model, path: Path, target: Target) -> None:
    """Raise ModelError where planner wrote a model for another target.

    Its copies and anchors are made for where that target runs each node. On another, ONNX Runtime
    would copy tensors that nobody planned to copy, or would not load the file.
    """
    written_for = model.metadata_props.get(TARGET_KEY, target.name)
    if written_for != target.name:
        raise ModelError(
            f"{path} was written by planner for {written_for}, not for {target.name}: use --device "
            f"{written_for}, or plan the original model again with --device {target.name}"
        )

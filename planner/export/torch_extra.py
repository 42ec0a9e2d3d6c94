"""Check that PyTorch and onnxscript, an optional extra, are installed."""

from __future__ import annotations

import importlib.util

from planner.errors import UsageError


def require_torch() -> None:
    """Raise UsageError with the install command if PyTorch or onnxscript is missing."""
    if not all(importlib.util.find_spec(name) for name in ("torch", "onnxscript")):
        raise UsageError(
            'exporting needs PyTorch; install it with pip install "onnx-planner[torch]"'
        )

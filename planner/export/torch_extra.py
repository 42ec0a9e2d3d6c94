"""PyTorch and its translation to ONNX are an extra: say so where they are missing."""

from __future__ import annotations

import importlib.util

from planner.errors import UsageError


def require_torch() -> None:
    """Raise UsageError, with what to install, where PyTorch or onnxscript is not installed."""
    if not all(importlib.util.find_spec(name) for name in ("torch", "onnxscript")):
        raise UsageError(
            'exporting needs PyTorch; install it with pip install "onnx-planner[torch]"'
        )

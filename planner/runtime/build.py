"""What the installed build of ONNX Runtime can do.

`onnxruntime-training` and `onnxruntime-training-cpu` (the last version is 1.19.2) share the import
name `onnxruntime` with the stock wheels. They have the gradient kernels, run Shape and Size nodes
elsewhere (`planner.graph.schedule`), and on the CPU lack the kernels that copy between host and device.
"""

from __future__ import annotations

import functools
import importlib


@functools.cache
def is_training_build() -> bool:
    """Whether the installed onnxruntime has gradient kernels."""
    try:
        state = importlib.import_module("onnxruntime.capi.onnxruntime_pybind11_state")
    except ImportError:
        return False
    return hasattr(state, "GradientGraphBuilder")


def why_no_copies(device: str) -> str:
    """Why no tensor can be copied to the host and back on `device`, or "" where it can."""
    if device == "cpu" and is_training_build():
        return "onnxruntime-training's CPU provider has no kernel for copies to the host"
    return ""

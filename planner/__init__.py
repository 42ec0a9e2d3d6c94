"""planner: a static memory planner and graph optimizer for ONNX training graphs.

from planner import analyze, optimize, verify

result = optimize("model.onnx", budget="60%", output="model.planned.onnx")
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = [
    "Plan",
    "PlannerError",
    "__version__",
    "analyze",
    "apply",
    "export_training_graph",
    "fit_devices",
    "optimize",
    "session_options",
    "sweep",
    "verify",
]

if TYPE_CHECKING:
    from planner.api import analyze, apply, optimize, verify
    from planner.api_devices import fit_devices
    from planner.api_sweep import sweep
    from planner.errors import PlannerError
    from planner.export.training import export_training_graph
    from planner.plan.planfile import Plan
    from planner.runtime.streams import session_options


def __getattr__(name: str) -> Any:
    # imported on first use: onnx and ortools take a second, `planner --help` must not wait for them
    if name in ("analyze", "apply", "optimize", "verify"):
        from planner import api

        return getattr(api, name)
    if name == "sweep":
        from planner.api_sweep import sweep

        return sweep
    if name == "fit_devices":
        from planner.api_devices import fit_devices

        return fit_devices
    if name == "export_training_graph":
        from planner.export.torch_extra import require_torch

        require_torch()
        from planner.export.training import export_training_graph

        return export_training_graph
    if name == "session_options":
        from planner.runtime.streams import session_options

        return session_options
    if name == "Plan":
        from planner.plan.planfile import Plan

        return Plan
    if name == "PlannerError":
        from planner.errors import PlannerError

        return PlannerError
    raise AttributeError(f"module 'planner' has no attribute {name!r}")

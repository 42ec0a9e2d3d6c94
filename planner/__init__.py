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
    "bind",
    "differentiate",
    "export_training_graph",
    "fit_devices",
    "open_session",
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
    from planner.export.from_onnx.forward import differentiate
    from planner.export.training import export_training_graph
    from planner.plan.planfile import Plan
    from planner.running.classes import open_session
    from planner.runtime.binding.bind import bind
    from planner.runtime.opened import session_options


_HOMES = {
    "Plan": "planner.plan.planfile",
    "PlannerError": "planner.errors",
    "analyze": "planner.api",
    "apply": "planner.api",
    "bind": "planner.runtime.binding.bind",
    "differentiate": "planner.export.from_onnx.forward",
    "export_training_graph": "planner.export.training",
    "fit_devices": "planner.api_devices",
    "open_session": "planner.running.classes",
    "optimize": "planner.api",
    "session_options": "planner.runtime.opened",
    "sweep": "planner.api_sweep",
    "verify": "planner.api",
}


def __getattr__(name: str) -> Any:
    # imported on first use: onnx and ortools take a second, `planner --help` must not wait for them
    if name not in _HOMES:
        raise AttributeError(f"module 'planner' has no attribute {name!r}")
    from importlib import import_module

    from planner.processes.garbage import collected_seldom

    if name == "export_training_graph":
        from planner.export.torch_extra import require_torch

        require_torch()
    with collected_seldom():
        return getattr(import_module(_HOMES[name]), name)

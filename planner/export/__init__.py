"""Export training graphs from PyTorch: `export_training_graph`, and the lowering behind it.

`errors`, `inputs`, `emit`, `optim` and `files` need no PyTorch; the other modules do.

Register a rule to lower an operator that has none:

    from planner.export import register

    @register("erfinv")
    def erfinv(low, x):
        value = low.value(x)  # the ONNX value of a traced tensor
        return low.op("Mul", value, value)  # appends a node and returns its result

`planner.export.aten.registry.Lowering` documents the object that a rule is given.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__all__ = ["register"]

if TYPE_CHECKING:
    from planner.export.aten.registry import register


def __getattr__(name: str) -> Any:
    # Imported on first use: parts of this package work without PyTorch.
    if name == "register":
        from planner.export.torch_extra import require_torch

        require_torch()
        from planner.export.aten.registry import register

        return register
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

"""PyTorch training steps whose loss and gradients a rewritten graph computes: `planner.torch.step`.

import planner.torch

step = planner.torch.step(module, example_inputs, loss_fn, targets=labels, budget="60%")
loss = step(inputs, labels)
loss.backward()
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__all__ = ["Step", "step"]

if TYPE_CHECKING:
    from planner.torch.making import step
    from planner.torch.stepping import Step

_HOMES = {"Step": "planner.torch.stepping", "step": "planner.torch.making"}


def __getattr__(name: str) -> Any:
    # Imported on first use: a missing PyTorch is then reported in one line.
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    from planner.export.torch_extra import require_torch

    require_torch()
    return getattr(import_module(_HOMES[name]), name)

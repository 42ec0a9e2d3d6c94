"""PyTorch is an extra: say so where it is missing."""

from __future__ import annotations

import importlib.util

from planner.errors import UsageError


def require_torch() -> None:
    """Raise UsageError, with what to install, where PyTorch is not installed."""
    if importlib.util.find_spec("torch") is None:
        raise UsageError('exporting needs PyTorch; install it with pip install "planner[torch]"')

"""Reject PyTorch schedules that no update can hold, with advice on what works instead.

Other schedules (`LambdaLR`, `StepLR`, `CosineAnnealingLR`, ...) count in Python numbers and are traced.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

from torch.optim.lr_scheduler import CyclicLR, LRScheduler, OneCycleLR, ReduceLROnPlateau

from planner.export.errors import UpdateRefused

_OUTSIDE = (
    "call its step outside of the update, where `lr` is an input of the graph then: feed "
    "optimizer.param_groups[0]['lr']"
)


@contextlib.contextmanager
def schedules_refused() -> Iterator[None]:
    """Make a step of such a schedule raise UpdateRefused within the block."""
    with contextlib.ExitStack() as stack:
        for kind, method, why in (
            (OneCycleLR, "get_lr", "raises an error after its last step"),
            (CyclicLR, "get_lr", ""),
            (ReduceLROnPlateau, "step", "reads its metric as a Python number"),
        ):
            found = _refusing(kind, getattr(kind, method), why)
            stack.enter_context(mock.patch.object(kind, method, found))
        yield


def _refusing(kind: type[LRScheduler], method: Callable[..., Any], why: str) -> Callable[..., Any]:
    def refusing(self: Any, *args: Any, **kwargs: Any) -> Any:
        cycled = getattr(self, "cycle_momentum", False)
        if not (why or cycled):
            return method(self, *args, **kwargs)
        what = "moves the momentum, which the graph has as a constant" if cycled else why
        how = ["make it with cycle_momentum=False"] * bool(cycled) + [_OUTSIDE] * bool(why)
        raise UpdateRefused(f"{kind.__name__} {what}: {', and '.join(how)}")

    return refusing

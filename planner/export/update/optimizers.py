"""Optimizers and schedules of an update: learning rates, parameters, and the kinds that are rejected.

Schedules that are not rejected (`LambdaLR`, `StepLR`, `CosineAnnealingLR`, ...) count in Python numbers
and are traced.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import torch
from torch import Tensor, fx
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.optim import LBFGS, Optimizer, SparseAdam
from torch.optim.lr_scheduler import CyclicLR, LRScheduler, OneCycleLR, ReduceLROnPlateau
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from planner.errors import UsageError
from planner.export.errors import UpdateRefused
from planner.export.update.numbers import number_of
from planner.export.update.reach import Reach
from planner.export.update.redirect import plainly

_KERNELS = ("foreach", "fused", "capturable", "differentiable")
"""Flags of a parameter group that select equivalent kernels; the plain form is traced."""

_REFUSED: Mapping[type[Optimizer], str] = {
    LBFGS: "LBFGS runs the step several times through a closure",
    SparseAdam: "SparseAdam takes sparse gradients, and a graph has dense ones: use Adam",
}

_OUTSIDE = (
    "call its step outside of the update, where `lr` is an input of the graph then: feed "
    "optimizer.param_groups[0]['lr']"
)


def check(optimizer: Optimizer) -> None:
    """Raise UsageError if an optimizer is of a kind that cannot be exported."""
    for kind, why in _REFUSED.items():
        if isinstance(optimizer, kind):
            raise UsageError(f"the optimizer cannot be exported: {why}")


@dataclass
class Rates:
    """Learning rates: an input for each parameter group, or one if all groups of an optimizer agree.

    A rate that the update computes or changes itself is not included.

    Attributes:
        parameters: names of the module's parameters, by identity.
        named: called when a new optimizer is found.
        free: returns an unused name for a rate.
        values: the rates' Python values, by name.
    """

    reach: Reach
    parameters: Mapping[int, str]
    named: Callable[[], None]
    free: Callable[[Any], str]
    values: dict[str, float] = field(default_factory=dict)
    dtype: torch.dtype = torch.float32
    _names: dict[tuple[int, int], str] = field(default_factory=dict)

    def forget(self) -> set[str]:
        """Forget the rates' names and values; return the names."""
        names = set(self._names.values())
        self._names.clear()
        self.values.clear()
        return names

    @contextlib.contextmanager
    def hooked(self, rate_of: Callable[[Optimizer, int], Any]) -> Iterator[None]:
        """Make optimizers step in their plain form and with other learning rates within the block.

        Args:
            rate_of: returns the rate of an optimizer's group by index; None keeps the group's own.
        """
        changed: list[tuple[dict[str, Any], str, Any, Any]] = []

        def before(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
            check(optimizer)
            if args[1:] or kwargs:  # the first is the optimizer
                raise UsageError(
                    f"{type(optimizer).__name__}.step takes a closure and runs the step again: a "
                    "graph holds one run of it"
                )
            self._check_parameters(optimizer)
            self.reach.add_root(type(optimizer).__name__, optimizer)
            self.named()
            changed.clear()
            for index, group in enumerate(optimizer.param_groups):
                for flag in _KERNELS:
                    if group.get(flag):
                        changed.append((group, flag, group[flag], False))
                    elif flag == "foreach" and group.get(flag, False) is None:
                        changed.append((group, flag, None, False))
                rate = rate_of(optimizer, index)
                if rate is not None:
                    changed.append((group, "lr", group["lr"], rate))
            for group, key, _, now in changed:
                group[key] = now

        def after(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
            for group, key, was, now in changed:
                if group[key] is now:
                    group[key] = was
            changed.clear()

        hooks = (register_optimizer_step_pre_hook(before), register_optimizer_step_post_hook(after))
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def as_input(self, run: Any) -> Callable[[Optimizer, int], Any]:
        """Return a `rate_of` for `hooked` that makes rates inputs of a run's graph."""

        def rate_of(optimizer: Optimizer, index: int) -> Any:
            group = optimizer.param_groups[index]
            if self.reach.was(group).get("lr") is not group.get("lr"):
                return None  # the update itself has replaced this rate
            if not _is_rate(group.get("lr"), run):
                return None
            return number_of(run.fed(self._name(optimizer, index), (), self.dtype))

        return rate_of

    def as_fed(self, feeds: Mapping[str, Any]) -> Callable[[Optimizer, int], Any]:
        """Return a `rate_of` for `hooked` that gives the rates fed to a graph."""

        def rate_of(optimizer: Optimizer, index: int) -> Any:
            at = (id(optimizer), index)
            name = self._names.get(at) or self._names.get((id(optimizer), 0)) or ""
            first = self.values.get(name)
            return None if first is None else float(feeds.get(name, first))

        return rate_of

    def _name(self, optimizer: Optimizer, index: int) -> str:
        rates = [_plain(group["lr"]) for group in optimizer.param_groups]
        at = 0 if len(set(rates)) == 1 else index
        if (id(optimizer), at) not in self._names:
            self._names[id(optimizer), at] = self.free(optimizer.param_groups[at]["lr"])
        name = self._names[id(optimizer), at]
        self.values[name] = rates[index]
        return name

    def _check_parameters(self, optimizer: Optimizer) -> None:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if id(parameter) not in self.parameters:
                    raise UsageError(
                        f"{type(optimizer).__name__} has a parameter of shape {list(parameter.shape)} "
                        "that is not the module's: create the optimizer from the current parameters "
                        "of the exported module (module.parameters())"
                    )

    def value_of(self, tracer: Any, node: fx.Node) -> Tensor | None:
        """Return a node's value if it depends on no inputs but the rates, else None."""
        rates = {
            tracer.input(name, (), self.dtype): torch.tensor(value, dtype=self.dtype)
            for name, value in self.values.items()
        }
        return tracer.merged.value_of(node, rates)


def _is_rate(rate: Any, run: Any) -> bool:
    """Tell whether a rate comes from outside: a number, or a tensor not yet written in this run."""
    if isinstance(rate, FunctionalTensor):
        return False
    return isinstance(rate, int | float) or (isinstance(rate, Tensor) and not run.changed(rate))


def _plain(rate: Any) -> float:
    with plainly():
        return float(rate)


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

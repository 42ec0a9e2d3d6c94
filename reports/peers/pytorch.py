"""A training step in PyTorch, in each of the ways that lower its memory; bytes by PyTorch's allocator."""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from planner.errors import UsageError
from reports.peers.networks import DrawnStep, Network, blocks, drawn
from reports.peers.numbers import Arrays

COMPILE = "compile "
EAGER, CHECKPOINT, SAVE_ON_CPU = "eager", "checkpoint", "save_on_cpu"
BUDGETS = ("1.0", "0.7", "0.5", "0.3")
"""Of `activation_memory_budget`: 1.0 is torch.compile as it comes."""

VARIANTS = (EAGER, CHECKPOINT, *(COMPILE + budget for budget in BUDGETS), SAVE_ON_CPU)


class TorchStep:
    """One network in one variant, ready to run; `step()` leaves the gradients in the parameters."""

    def __init__(self, network: Network, variant: str, device: str, threads: int) -> None:
        torch.set_num_threads(threads)
        if device == "cuda":  # as ONNX Runtime multiplies there by default (use_tf32)
            torch.set_float32_matmul_precision("high")
        self.drawn: DrawnStep = drawn(network, device)
        self.device = device
        self._forward: Callable[[], Tensor] = self.drawn.forward
        self._around: Callable[[], AbstractContextManager[object]] = contextlib.nullcontext
        if variant == CHECKPOINT:
            for block in blocks(self.drawn.module):
                block.forward = functools.partial(checkpoint, block.forward, use_reentrant=False)
        elif variant == SAVE_ON_CPU:
            # without pinning, it copies nothing on a CPU and saves the same tensors as eager
            self._around = functools.partial(torch.autograd.graph.save_on_cpu, pin_memory=True)
        elif variant.startswith(COMPILE):
            self._forward = _compiled(self.drawn, float(variant.removeprefix(COMPILE)))
        elif variant != EAGER:
            raise UsageError(f"unknown variant {variant!r}; choose one of {', '.join(VARIANTS)}")

    def clear(self) -> None:
        """Drop the gradients."""
        for parameter in self.drawn.module.parameters():
            parameter.grad = None

    def step(self) -> Tensor:
        """Compute loss and gradients; they are complete on return."""
        with self._around():
            loss = self._forward()
        loss.backward()
        if self.device == "cuda":
            torch.cuda.synchronize()
        return loss.detach()

    def seconds(self) -> float:
        """Time one step, which includes dropping the last step's gradients."""
        start = time.perf_counter()
        self.clear()
        self.step()
        return time.perf_counter() - start

    def numbers(self) -> Arrays:
        """`loss` and the gradient of each parameter, of one step."""
        self.clear()
        found = {"loss": self.step().double().cpu().numpy()}
        for name, parameter in self.drawn.module.named_parameters():
            if parameter.grad is not None:
                found[f"{name}_grad"] = parameter.grad.cpu().numpy()
        self.clear()
        return {name: np.array(value) for name, value in found.items()}

    def feeds(self) -> Arrays:
        """Return input, target, parameters and buffers as the exported graph takes them."""
        step, module = self.drawn, self.drawn.module
        held = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        named = {**dict(zip(step.names, (step.input, step.target), strict=True)), **held}
        return {name: np.array(value.detach().cpu().numpy()) for name, value in named.items()}

    def peak_bytes(self) -> int:
        """Most bytes at once in a warm step: parameters, buffers, input, target, and all that PyTorch's
        allocator gave out in the step, the gradients and operators' temporary tensors among it."""
        self.clear()
        if self.device == "cuda":
            torch.cuda.reset_peak_memory_stats()
            self.step()
            return int(torch.cuda.max_memory_allocated())
        changes = self._allocations()
        return self._persistent_bytes() + int(max(np.cumsum(changes), default=0))

    def _allocations(self) -> list[int]:
        """Return the bytes of each allocation (+) and release (-) of a step, in order."""
        activities = [torch.profiler.ProfilerActivity.CPU]
        with torch.profiler.profile(activities=activities, profile_memory=True) as profiler:
            self.step()
        events = profiler.profiler.kineto_results.events()  # type: ignore[union-attr]
        memory: list[Any] = [event for event in events if event.name() == "[memory]"]
        return [event.nbytes() for event in sorted(memory, key=lambda event: event.start_ns())]

    def _persistent_bytes(self) -> int:
        module, step = self.drawn.module, self.drawn
        held = [*module.parameters(), *module.buffers(), step.input, step.target]
        storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in held}
        return sum(storages.values())

    def shares(self) -> dict[str, float]:
        """Of the time of a warm step on the CPU, by PyTorch's profiler: operator -> share."""
        activities = [torch.profiler.ProfilerActivity.CPU]
        schedule = torch.profiler.schedule(wait=0, warmup=2, active=1, repeat=1)
        with torch.profiler.profile(activities=activities, schedule=schedule) as profiler:
            for _ in range(3):
                self.clear()
                self.step()
                profiler.step()
        found = {str(e.key): float(e.self_cpu_time_total) for e in profiler.key_averages()}
        found = {name: us for name, us in found.items() if not name.startswith("ProfilerStep")}
        whole = sum(found.values()) or 1.0
        return {name: us / whole for name, us in found.items()}


def float64_numbers(network: Network, device: str, threads: int) -> Arrays:
    """Compute PyTorch's numbers in double precision, to show single precision's rounding error."""
    torch.set_num_threads(threads)
    step = drawn(network, device)
    module = step.module.double()
    given = step.input.double() if step.input.is_floating_point() else step.input
    loss = step.loss(module(given), step.target)
    loss.backward()
    grads = {
        f"{name}_grad": parameter.grad.cpu().numpy()
        for name, parameter in module.named_parameters()
        if parameter.grad is not None
    }
    return {"loss": loss.detach().cpu().numpy(), **grads}


def _compiled(step: DrawnStep, budget: float) -> Callable[[], Tensor]:
    """Compile network and loss as one function; the budget applies to this process from then on."""
    import torch._functorch.config as functorch

    functorch.activation_memory_budget = budget  # type: ignore[assignment]

    def whole(given: Tensor, target: Tensor) -> Tensor:
        return step.loss(step.module(given), target)

    compiled = torch.compile(whole)
    return lambda: compiled(step.input, step.target)


def product_seconds(rows: int, inner: int, columns: int, threads: int) -> float:
    """Time the product of `reports.peers.runtime.product_seconds` in PyTorch."""
    from reports.peers.runtime import least_seconds

    torch.set_num_threads(threads)
    a, b = torch.randn(rows, inner), torch.randn(inner, columns)
    return least_seconds(lambda: torch.mm(a, b))

"""Run both models under a hard cap on a device whose arena is ONNX Runtime's: CUDA.

The arena is registered with the environment and used through `session.use_env_allocators`: it holds
`max_mem` bytes at most, its first region is what a step needs, and every chunk is split.
`gpu_mem_limit`, the provider's own option, bounds the same bytes, but does not control regions and
chunks. By a replay, nine plans needed 2 to 47% more of it than they had in use, for idle bytes in
chunks up to twice as large as their content. Everything on the device is in the arena: inputs,
initializers, outputs, and kernels' workspace, which is not predicted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy.typing as npt

from planner.fit.demands import demands_of
from planner.fit.search import fits_arena, least_arena
from planner.results.verification import CapCheck
from planner.runtime.device import client
from planner.runtime.device.side import Side
from planner.runtime.options import Order
from planner.targets import Target

_MORE = (0.02, 0.04, 0.07, 0.1, 0.15, 0.25, 0.4, 0.6, 1.0)
"""Shares of the budget by which a cap is raised, until the rewritten model runs."""


def cap_on_device(
    target: Target,
    pair: tuple[Side, Side],
    inputs: Mapping[str, npt.NDArray[Any]],
    budget_bytes: int,
    *,
    live_peak_bytes: int,
    order: Order = "default",
) -> tuple[tuple[CapCheck, CapCheck], Mapping[str, npt.NDArray[Any]]]:
    """Find the least arena that the rewritten model runs in, and try the original in it.

    Arenas are tried in ascending order, the budget first.

    Args:
        pair: the original and the rewritten model.
        live_peak_bytes: live peak of the original, which must fail under a lower cap.
        order: the session option that the rewritten model is written for.

    Returns:
        The checks of both models, and the outputs of the rewritten one under the cap; none where it did
        not run.

    Raises:
        UsageError: the device is not available.
    """
    original, rewritten = pair
    arenas = list(_arenas(rewritten, target, budget_bytes))
    found = client.capped(
        target, rewritten.path, inputs, arenas, order=order, level=rewritten.level
    )
    region, cap = arenas[-1 if found.passed is None else found.passed]
    alike = client.capped(target, original.path, inputs, [(cap, cap)], level=original.level)

    def check(model: str, run: client.CappedRun, expected: bool | None) -> CapCheck:
        passed = run.passed is not None
        return CapCheck(
            model=model,
            cap_bytes=cap,
            passed=passed,
            expected=expected,
            message="" if passed else run.messages[-1],
            over_budget_bytes=cap - budget_bytes,
            first_region_bytes=region,
        )

    before = check("original", alike, False if live_peak_bytes > cap else None)
    return (before, check("rewritten", found, True)), found.outputs


def _arenas(model: Side, target: Target, budget_bytes: int) -> Iterator[tuple[int, int]]:
    """Yield (first region, cap): what the replay needs within the budget, then all of the budget and of
    larger caps as one region, if the replay fits; the largest in any case."""
    units = {op: i for i, op in enumerate(model.order)}
    demands = demands_of(model.graph, model.order, units, {}, target)
    for more in (0.0, *_MORE):
        cap = budget_bytes + int(more * budget_bytes)
        fits = fits_arena(demands, cap)
        if fits and not more and (least := least_arena(demands, cap)) < cap:
            yield least, cap
        if fits or more == _MORE[-1]:
            yield cap, cap

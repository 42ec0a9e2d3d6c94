"""Run both models under a hard cap on a device whose arena is ONNX Runtime's: CUDA.

The arena is registered with the environment and used through `session.use_env_allocators`: it may
hold `max_mem` bytes, its regions double from the first one, and every chunk is split.
`gpu_mem_limit`, the provider's own option, bounds the same bytes, but does not control regions and
chunks. By a replay, nine plans needed 2 to 47% more of it than they had in use, for idle bytes in
chunks up to twice as large as their content. Everything on the device is in the arena: inputs,
initializers, outputs, and kernels' workspace, which is not predicted.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt

from planner.results.verification import CapCheck
from planner.runtime.device import client
from planner.runtime.device.predict.bfc_device import forecast_arena
from planner.runtime.device.reference import Side
from planner.runtime.memory.arena import capped, region_sizes
from planner.runtime.memory.bfc import ArenaFullError
from planner.runtime.options import MAX_FIRST_REGION, Order
from planner.targets import Target

_LOOKED_AT = 24
"""The most first regions that are replayed for one cap: the replay of a large graph takes a while."""
_TRIED = 3  # first regions in which the model really runs, at the budget itself
_MORE = (0.02, 0.04, 0.07, 0.1, 0.15, 0.25, 0.4, 0.6, 1.0)
"""Shares of the budget by which a cap is raised, until the rewritten model runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CapsOnDevice:
    """The outcomes of both models.

    Attributes:
        checks: checks of the original and of the rewritten model.
        outputs: outputs of the rewritten model under the cap; empty where it did not run.
    """

    checks: tuple[CapCheck, CapCheck]
    outputs: Mapping[str, npt.NDArray[Any]]


def cap_on_device(
    target: Target,
    pair: tuple[Side, Side],
    inputs: Mapping[str, npt.NDArray[Any]],
    budget_bytes: int,
    *,
    live_peak_bytes: int,
    order: Order = "default",
) -> CapsOnDevice:
    """Run the rewritten model under the least cap tried, from the budget on, and the original under
    that cap.

    Args:
        pair: the original and the rewritten model.
        live_peak_bytes: live peak of the original, which must fail under a lower cap.
        order: the session option that the rewritten model is written for.

    Raises:
        UsageError: the device is not available.
    """
    original, rewritten = pair
    attempts = list(_attempts(rewritten, budget_bytes))
    found = client.capped(
        target, rewritten.path, inputs, attempts, order=order, level=rewritten.level
    )
    which = len(attempts) - 1 if found.passed is None else found.passed
    cap, region = attempts[which]
    alike = client.capped(target, original.path, inputs, [attempts[which]], level=original.level)

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
    return CapsOnDevice(checks=(before, check("rewritten", found, True)), outputs=found.outputs)


def _attempts(model: Side, budget_bytes: int) -> Iterator[tuple[int, int]]:
    """Yield (cap, first region): those of the budget in which the replay fits, then one for each
    larger cap."""
    regions = list(itertools.islice(_regions(model, budget_bytes), _TRIED))
    yield from ((budget_bytes, region) for region in regions)
    for more in _MORE:
        cap = budget_bytes + int(more * budget_bytes)
        region = next(_regions(model, cap), None)
        if region is not None:
            yield cap, region
    if not regions:  # nothing fits by the replay: try one region of the largest cap
        most = 2 * budget_bytes
        yield most, min(most, MAX_FIRST_REGION)


def _regions(model: Side, cap_bytes: int) -> Iterator[int]:
    sizes = region_sizes(cap_bytes, len(model.order))
    head, tail = sizes[: _LOOKED_AT // 4], sizes[_LOOKED_AT // 4 :]
    stride = max(1, len(tail) // (_LOOKED_AT - len(head)))
    for size in (*head, *tail[::stride]):
        try:
            forecast_arena(model.graph, model.order, capped(cap_bytes, size))
        except ArenaFullError:
            continue
        yield size

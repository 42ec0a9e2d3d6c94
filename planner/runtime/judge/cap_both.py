"""Both models under a hard cap on the CPU: the rewritten one within the budget, the original not.

What the arena needs beyond the live bytes (rounding, fragmentation, kernels' workspace) raises both
caps alike: the comparison is of the plans, not of the allocator's losses.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy.typing as npt

from planner.graph.liveness import timeline
from planner.graph.model import OpId, TrainingGraph
from planner.results import CapCheck, MemoryCheck
from planner.runtime.judge.cap import refused_by_arena, run_capped
from planner.runtime.memory.arena import arena_cap, first_region, first_regions, roomy_cap
from planner.runtime.memory.workspace import workspace
from planner.runtime.options import Level, Opening, Order, most_threads
from planner.runtime.timing import available_bytes
from planner.units import format_bytes

_TRIES = 8  # first regions that are tried for real

_BOTH = 3
"""Times the budget that is free where both models run at once: each may take it, beside its inputs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contestant:
    """A model to run under a cap.

    Attributes:
        name: "original" or "rewritten".
        order: predicted, or as it was seen to run.
        order_option, level: of the session.
        runs: consecutive ones, which must all succeed.
    """

    name: str
    path: Path
    graph: TrainingGraph
    order: Sequence[OpId]
    order_option: Order
    level: Level
    inputs: Mapping[str, npt.NDArray[Any]]
    runs: int = 2

    def under(
        self, cap_bytes: int, regions: Iterable[int], over_bytes: int, expected: bool | None
    ) -> CapCheck | None:
        """The first of `regions` with which the model runs, or the last one's refusal; None for none.

        Among free chunks of one size the allocator takes the lowest address, which no replay can
        know for certain, so that a region that is predicted to do may not.
        """
        check: CapCheck | None = None
        for region in regions:
            capped = run_capped(
                self.path,
                self.inputs,
                cap_bytes,
                Opening(order=self.order_option, level=self.level),
                first_region_bytes=region,
                runs=self.runs,
            )
            check = CapCheck(
                model=self.name,
                cap_bytes=cap_bytes,
                passed=capped.passed,
                expected=expected,
                message=capped.message,
                over_budget_bytes=over_bytes,
                first_region_bytes=region,
            )
            if check.passed:
                break
        return check

    def regions(self, cap_bytes: int) -> Iterator[int]:
        """First regions with which the replay stays within the cap, each looked for when asked for."""
        regions = first_regions(self.graph, self.order, cap_bytes, threads=most_threads())
        return itertools.islice(regions, _TRIES)


@dataclass(frozen=True, slots=True, kw_only=True)
class CapsFound:
    """How both models fared, what failed of it, and what is to be said."""

    checks: tuple[CapCheck, CapCheck]
    failures: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def capped_by(
    budget_bytes: int,
    original: Contestant,
    rewritten: Contestant,
    seen: Sequence[MemoryCheck],
    first_region_bytes: int | None = None,
) -> CapsFound:
    """Both models under a cap, judged.

    Args:
        seen: bytes of the original, as it was seen to run.
        first_region_bytes: of the arena that the rewritten model's file asks for.
    """
    graph, order = original.graph, original.order
    scratch = {op: needed.bytes for op, needed in workspace(graph, threads=1).items()}
    peak = timeline(graph, order, workspace_bytes=scratch).peak_bytes
    for check in seen:
        if check.live_bytes != check.predicted_live_bytes:
            peak = min(peak, check.live_bytes)  # a peak that it did not have
    checks = cap_both(
        original,
        rewritten,
        budget_bytes,
        live_peak_bytes=peak,
        first_region_bytes=first_region_bytes,
    )
    failures = [check.failure for check in checks if check.failure]
    notes: tuple[str, ...] = ()
    if over := checks[1].over_budget_bytes:
        notes = (
            f"the budget bounds live bytes; rounding, fragmentation and kernels' workspace in "
            f"the CPU's arena take {format_bytes(over)} more, so the hard cap stands at the "
            f"budget plus that; a reserve of {over} bytes keeps the arena itself within it",
        )
    return CapsFound(checks=checks, failures=tuple(failures), notes=notes)


def cap_both(
    original: Contestant,
    rewritten: Contestant,
    budget_bytes: int,
    *,
    live_peak_bytes: int,
    first_region_bytes: int | None = None,
) -> tuple[CapCheck, CapCheck]:
    """(original, rewritten), each in processes of its own.

    Args:
        live_peak_bytes: of the original, workspace included: it is expected to fail only below.
        first_region_bytes: of the arena that the rewritten model's file asks for.
    """
    cap = arena_cap(rewritten.graph, budget_bytes)
    regions = rewritten.regions(cap)
    first = [first_region_bytes] if first_region_bytes else list(itertools.islice(regions, 1))

    def original_under(over: int, region: int) -> CapCheck:
        found = original.under(arena_cap(original.graph, budget_bytes) + over, [region], over, None)
        assert found is not None
        return found

    with ThreadPoolExecutor(1) as pool:
        # as a rule the first region does
        begun = {
            (0, region): pool.submit(original_under, 0, region)
            for region in first
            if _have_room(budget_bytes)
        }
        fits = rewritten.under(cap, itertools.chain(first, regions), 0, True)
        if fits is None or refused_by_arena(fits):
            fits = _least_above(rewritten, cap, tried=fits is not None)
        over, region = fits.over_budget_bytes, fits.first_region_bytes
        asked = begun.get((over, region)) or pool.submit(original_under, over, region)
        cap = arena_cap(original.graph, budget_bytes) + over
        # below its live bytes it must fail; above them, what the arena loses decides, in the replay
        must_fail = arena_cap(original.graph, live_peak_bytes) > cap
        threads = most_threads()
        region = first_region(original.graph, original.order, cap, threads=threads)
        fails = must_fail and region is None
        return replace(asked.result(), expected=False if fails else None), fits


def _have_room(budget_bytes: int) -> bool:
    """Whether both models may run at once, each within the budget."""
    available = available_bytes()
    return available is None or _BOTH * budget_bytes <= available


def _least_above(rewritten: Contestant, budget_cap: int, *, tried: bool) -> CapCheck:
    """The rewritten model under the least cap above the budget's with which it runs; `tried`: it
    does not run at the budget's own, though the replay said so."""
    more = budget_cap // 50
    cap, check = budget_cap + (more if tried else 0), None
    for _ in range(_TRIES):
        cap, _region = roomy_cap(
            rewritten.graph, rewritten.order, at_least=cap, threads=most_threads()
        )
        check = rewritten.under(cap, rewritten.regions(cap), cap - budget_cap, True)
        assert check is not None
        if check.passed:
            break
        more = 2 * more  # some kernels take workspace that no replay knows of
        cap += more
    assert check is not None
    return check

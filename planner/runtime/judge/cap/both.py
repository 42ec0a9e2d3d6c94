"""Run both models under a hard cap on the CPU: the rewritten one must fit the budget, the original
not, where its need is known.

Where the budget bounds live bytes, the pool's bytes beyond them (pages, kernels' workspace) raise
both caps alike: the comparison is of the plans.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy.typing as npt

from planner.graph.liveness import timeline
from planner.graph.model import OpId, TrainingGraph
from planner.results.verification import CapCheck, MemoryCheck, SessionCheck
from planner.runtime.judge.cap.run import Capped, run_capped
from planner.runtime.memory.arena import arena_cap
from planner.runtime.memory.paged import in_pages, pool_bytes
from planner.runtime.memory.workspace import workspace
from planner.runtime.opened import needs_of
from planner.runtime.options import Level, Opening, Order, most_threads


@dataclass(frozen=True, slots=True, kw_only=True)
class Contestant:
    """A model to run under a cap.

    Attributes:
        name: "original" or "rewritten".
        order: its order, predicted or executed.
        order_option, level: options of the session.
        threads: intra-operator threads.
        opened: (bytes of the pool that its file asks for, the outcome there by
            `planner.open_session`); None where it did not run so.
        runs: number of consecutive runs that must all succeed.
    """

    name: str
    path: Path
    graph: TrainingGraph
    order: Sequence[OpId]
    order_option: Order
    level: Level
    inputs: Mapping[str, npt.NDArray[Any]]
    threads: int = 1
    opened: tuple[int, Capped] | None = None
    runs: int = 2

    @property
    def needed_bytes(self) -> int:
        """The predicted bytes of the pool that it needs."""
        return pool_bytes(self.graph, self.order, threads=most_threads())

    def under(self, cap_bytes: int, *, spills: bool = False) -> Capped:
        """Run it in a pool of `cap_bytes` bytes, and return the outcome."""
        if self.opened is not None and self.opened[0] == cap_bytes and not spills:
            return self.opened[1]
        opening = Opening(order=self.order_option, level=self.level, threads=self.threads)
        return run_capped(self.path, self.inputs, cap_bytes, opening, runs=self.runs, spills=spills)


def in_its_pool(path: Path, opened: SessionCheck | None) -> tuple[int, Capped] | None:
    """Return (the pool that the rewritten model's file asks for, the outcome there).

    Return None where it asks for none that refuses requests beyond its size.

    Args:
        opened: the outcome of the file as `planner.open_session` opens it; None where it did not run so.
    """
    pool = needs_of(path).pool
    if opened is None or pool is None or not pool.is_proved:
        return None
    said = opened.failure
    return pool.bytes, Capped(passed=not said, message=said, refused=not opened.has_room)


def capped_by(
    budget_bytes: int,
    original: Contestant,
    rewritten: Contestant,
    seen: Sequence[MemoryCheck],
    *,
    is_as_analysed: bool = True,
) -> tuple[CapCheck, CapCheck]:
    """Run both models under a cap, and return the checks of (original, rewritten).

    Args:
        seen: measured bytes of the original.
        is_as_analysed: the original's nodes are those of its graph; otherwise it may run under the cap,
            because ONNX Runtime's optimizers give it other nodes, and another order, in each session.
    """
    graph, order = original.graph, original.order
    scratch = {op: needed.bytes for op, needed in workspace(graph, threads=1).items()}
    peak = timeline(graph, order, workspace_bytes=scratch).peak_bytes
    for check in seen:
        if check.live_bytes != check.predicted_live_bytes:
            peak = min(peak, check.live_bytes)  # the measured peak was another
    if graph.has_sequences or not is_as_analysed:
        peak = 0  # bytes of sequences are an upper bound: the original may run
    return cap_both(original, rewritten, budget_bytes, live_peak_bytes=peak)


def cap_both(
    original: Contestant, rewritten: Contestant, budget_bytes: int, *, live_peak_bytes: int
) -> tuple[CapCheck, CapCheck]:
    """Return the checks of (original, rewritten), each run in processes of its own.

    Args:
        live_peak_bytes: live peak of the original, workspace included; only caps below it must fail.
    """
    room = in_pages(max(0, arena_cap(rewritten.graph, budget_bytes)))
    over = max(0, rewritten.needed_bytes - room)

    fits = rewritten.under(room + over)
    found = _check(rewritten, fits, room + over, over, True)
    if fits.refused:  # some kernels take workspace that is not predicted
        spilled = rewritten.under(room + over, spills=True)
        over += spilled.spilled_bytes
        found = _check(rewritten, spilled, room + over, over, True)
    cap = arena_cap(original.graph, budget_bytes) + over
    # below its live bytes it must fail; above them, the predicted pages decide
    must_fail = arena_cap(original.graph, live_peak_bytes) > cap and original.needed_bytes > cap
    return _check(original, original.under(cap), cap, over, False if must_fail else None), found


def _check(
    one: Contestant, found: Capped, cap_bytes: int, over_bytes: int, expected: bool | None
) -> CapCheck:
    return CapCheck(
        model=one.name,
        cap_bytes=cap_bytes,
        passed=found.passed,
        expected=expected,
        message=found.message,
        over_budget_bytes=over_bytes,
    )

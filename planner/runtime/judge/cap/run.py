"""A hard cap: test whether a model runs in a pool of a given size.

The budget covers everything on the device. On the CPU, feeds are not in the pool, nor are
initializers above 127 bytes; `planner.runtime.memory.arena.arena_cap` subtracts them. A kernel's
workspace and the rounding to pages are in the pool; nothing else is lost
(`planner.runtime.memory.paged`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy.typing as npt

from planner.runtime.judge.alone import Process, saved
from planner.runtime.memory.paged import PAGE_BYTES
from planner.runtime.options import Opening

_OPENING = Opening(threads=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Capped:
    """The outcome of a model's runs in a pool.

    Attributes:
        message: why it failed; "" where it did not.
        refused: whether the pool had no room, as opposed to another failure.
        spilled_bytes: peak of the bytes outside of a pool that spills.
    """

    passed: bool
    message: str = ""
    refused: bool = False
    spilled_bytes: int = 0


def run_capped(
    model_path: Path,
    inputs: Mapping[str, npt.NDArray[Any]],
    pool_bytes: int,
    opening: Opening = _OPENING,
    *,
    runs: int = 2,
    spills: bool = False,
) -> Capped:
    """Run `model_path` in a process of its own, in a pool of `pool_bytes`.

    Args:
        pool_bytes: see `planner.runtime.memory.arena.arena_cap`.
        opening: order, level and threads (convolutions take a buffer for each) of the session.
        runs: consecutive runs that must all succeed; results are dropped in between.
        spills: whether requests beyond the pool's size are served from outside of it.
    """
    if pool_bytes < PAGE_BYTES:
        why = "graph inputs and initializers alone exceed the budget"
        return Capped(passed=False, message=why, refused=True)
    process = Process(
        path=model_path,
        options="capped",
        runs=runs,
        how={
            "pool_bytes": pool_bytes,
            "spills": spills,
            "order": opening.order,
            "level": opening.level,
            "threads": opening.threads,
        },
    )
    with saved(inputs) as files:
        found = process.run(files)
    return Capped(
        passed=not found.failure,
        message=found.failure,
        refused=not found.has_room,
        spilled_bytes=found.spilled_bytes,
    )

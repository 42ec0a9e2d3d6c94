"""Where each buffer lies in one arena: offsets for buffers whose lives are known.

Two buffers that are live at one time may not share a byte. The arena is at least as high as the
*contention*, the largest sum of live bytes; what a packing takes beyond that is fragmentation.
(Dynamic storage allocation: NP-hard, Garey and Johnson 1979, SR2.)

     offset
        │    ┌────────────┐
        │    │     c      ├──────┐        a, b: live together, side by side
        │    ├───────┬────┘      │        d: begins as b ends, and takes its place
        │    │   b   │     d     │
        │ ┌──┴───────┴──┬────────┘
        │ │      a      │
        └─┴─────────────┴──────────▶ time

Parts of the run that no buffer joins are packed apart. Greedy packings come first; where one is higher
than it need be, a depth-first search looks for a lower one.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from planner.pack.depth_first import COMPILATION
from planner.pack.greedy import first_fit, sweep
from planner.pack.instance import Instance, Intervals, Ints, contention_bytes
from planner.pack.search import PartSearch, Result, Verdict

FIRST_FIT_BUFFERS = 20_000
"""Above this, largest-first (quadratic) is left out: seconds for little over best fit."""
PRECISION = 1e-3
"""Heights closer to each other than this share are not told apart where no capacity is given."""
_BOUND_SHARE, _STEP_SHARE = 0.2, 0.5
"""Of the time left: for the bound itself, and for each bisection."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Buffer:
    """A stretch of memory, live in `[start, end)`; the unit of time is the caller's.

    Attributes:
        alignment: its offset is a multiple of this many bytes.
    """

    start: int
    end: int
    size_bytes: int
    alignment: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Packing:
    """Offsets for buffers, in their order.

    Attributes:
        height_bytes: the arena's size: the highest top of any buffer.
        bound_bytes: the contention; no packing is lower.
        capacity_bytes: what was asked for; None where the least height was.
        engine: what found the highest part: "best fit", "first fit" or "depth-first".
    """

    offsets: tuple[int, ...]
    height_bytes: int
    bound_bytes: int
    capacity_bytes: int | None
    engine: str
    seconds: float

    @property
    def fits(self) -> bool:
        """Whether it stays within the capacity, if there is one."""
        return self.capacity_bytes is None or self.height_bytes <= self.capacity_bytes

    @property
    def fragmentation(self) -> float:
        """How far above the contention the arena is: 0.01 is 1%."""
        return self.height_bytes / self.bound_bytes - 1 if self.bound_bytes else 0.0


class InvalidPackingError(Exception):
    """The packing is none; the message names the buffers."""


@dataclass(slots=True)
class _Part:
    """A part of the run, the best packing of it yet, and the search for a better one."""

    index: Ints
    instance: Instance
    offsets: Ints
    height_bytes: int
    engine: str
    search: PartSearch


def pack(
    buffers: Sequence[Buffer],
    *,
    capacity_bytes: int | None = None,
    time_limit_s: float = 10.0,
    seed: int = 0,
) -> Packing:
    """Pack within a capacity or, without one, as low as time allows.

    The answer is a packing in any case: where the capacity was not met, `fits` is False. A seed gives
    the same offsets each time, unless the time limit ends the search.

    Args:
        buffers: sizes may be 0, and lives empty: such buffers get offset 0.
        time_limit_s: the search stops then; the greedy packings are made even so. Compiling the
            search, seconds the first time on a machine, is not counted.

    Raises:
        ValueError: a buffer ends before it starts, has a negative size or an alignment below 1, or
            the capacity is negative.
    """
    begin = time.monotonic()
    deadline = begin + time_limit_s
    _check_input(buffers, capacity_bytes)
    columns = np.array(
        [(b.start, b.end, b.size_bytes, b.alignment) for b in buffers], dtype=np.int64
    ).reshape(-1, 4)
    real = np.flatnonzero((columns[:, 0] < columns[:, 1]) & (columns[:, 2] > 0))
    start, end, size, alignment = columns[real].T
    intervals = Intervals(start=start, end=end, size=size, alignment=alignment)
    bound = contention_bytes(start, end, size)
    parts = [
        _greedy(intervals, index, seed=seed, deadline=deadline) for index in intervals.components()
    ]
    least = max((part.instance.bound_bytes for part in parts), default=0)
    height = max((part.height_bytes for part in parts), default=0)
    target = int(least * (1 + PRECISION)) if capacity_bytes is None else capacity_bytes
    if least <= target < height and time.monotonic() < deadline:
        deadline += _compiled_s()
        if capacity_bytes is None:
            _lower(parts, least, deadline)
        else:
            _reach(parts, capacity_bytes, deadline)
    offsets = np.zeros(len(buffers), dtype=np.int64)
    for part in parts:
        offsets[real[part.index]] = part.offsets
    highest = max(parts, key=lambda part: part.height_bytes, default=None)
    return Packing(
        offsets=tuple(offsets.tolist()),
        height_bytes=highest.height_bytes if highest else 0,
        bound_bytes=bound,
        capacity_bytes=capacity_bytes,
        engine=highest.engine if highest else "none",
        seconds=time.monotonic() - begin,
    )


def check_packing(buffers: Sequence[Buffer], packing: Packing) -> None:
    """Check a packing without knowing how it was made.

    Sweeps time, keeping the live buffers by address; O(n log n) comparisons.

    Raises:
        InvalidPackingError: an offset is negative or not aligned, two live buffers share a byte, or
            the height is not the highest top.
    """
    if len(packing.offsets) != len(buffers):
        raise InvalidPackingError(f"{len(packing.offsets)} offsets for {len(buffers)} buffers")
    top = 0
    events: list[tuple[int, bool, int]] = []
    for i, (buffer, offset) in enumerate(zip(buffers, packing.offsets, strict=True)):
        if offset < 0 or offset % buffer.alignment:
            raise InvalidPackingError(f"buffer {i} at {offset}: not a multiple of its alignment")
        if buffer.start < buffer.end and buffer.size_bytes:
            top = max(top, offset + buffer.size_bytes)
            events += [(buffer.start, True, i), (buffer.end, False, i)]
    live: list[tuple[int, int]] = []  # (offset, buffer), ascending: no two share a byte
    for _, is_birth, i in sorted(events):  # deaths before births at one time
        place = (packing.offsets[i], i)
        at = bisect_left(live, place)
        if not is_birth:
            del live[at]
            continue
        if at and live[at - 1][0] + buffers[live[at - 1][1]].size_bytes > place[0]:
            raise InvalidPackingError(f"buffers {live[at - 1][1]} and {i} overlap")
        if at < len(live) and place[0] + buffers[i].size_bytes > live[at][0]:
            raise InvalidPackingError(f"buffers {i} and {live[at][1]} overlap")
        live.insert(at, place)
    if top != packing.height_bytes:
        raise InvalidPackingError(f"the height is {top}, not {packing.height_bytes}")


def _check_input(buffers: Sequence[Buffer], capacity_bytes: int | None) -> None:
    if capacity_bytes is not None and capacity_bytes < 0:
        raise ValueError(f"the capacity is negative: {capacity_bytes}")
    for i, buffer in enumerate(buffers):
        if buffer.end < buffer.start:
            raise ValueError(f"buffer {i} ends at {buffer.end}, before its start {buffer.start}")
        if buffer.size_bytes < 0:
            raise ValueError(f"buffer {i} has a negative size: {buffer.size_bytes}")
        if buffer.alignment < 1:
            raise ValueError(f"buffer {i} has an alignment below 1: {buffer.alignment}")


def _greedy(intervals: Intervals, index: Ints, *, seed: int, deadline: float) -> _Part:
    """The best of the greedy packings of the buffers at `index`: none is tried beside one that takes no
    more units than are live."""
    sizes = intervals.size[index]
    instance = Instance.of(intervals.take(index))

    def packings() -> Iterator[tuple[str, Ints | None]]:
        yield "best fit", sweep(instance)
        yield "best fit", sweep(instance, backwards=True)
        if len(instance) <= FIRST_FIT_BUFFERS:
            area = instance.size * instance.lifetime.astype(np.float64)
            for order in (
                np.lexsort((-instance.lifetime, -instance.size)),
                np.argsort(-area, kind="stable"),
                np.argsort(intervals.start[index], kind="stable"),
            ):
                yield "first fit", first_fit(instance, order, deadline=deadline)

    found: list[tuple[int, str, Ints]] = []
    for engine, units in packings():
        if units is not None:
            offsets = units * instance.unit_bytes
            found.append((int((offsets + sizes).max()), engine, offsets))
            if int((units + instance.size).max()) <= int(instance.load.max()):
                break
    height_bytes, engine, offsets = min(found, key=lambda one: one[0])
    return _Part(
        index=index,
        instance=instance,
        offsets=offsets,
        height_bytes=height_bytes,
        engine=engine,
        search=PartSearch(instance, seed=seed),
    )


def _compiled_s() -> float:
    """Make sure that the search is compiled; how long that took."""
    begin = time.monotonic()
    COMPILATION.warm_up()
    return time.monotonic() - begin


def _reach(parts: Sequence[_Part], capacity_bytes: int, deadline: float) -> Verdict:
    """Get every part within `capacity_bytes`, the highest first; stops at the first that resists."""
    for part in sorted(parts, key=lambda part: -part.height_bytes):
        if part.height_bytes <= capacity_bytes:
            continue
        result: Result = part.search.within(capacity_bytes, deadline=deadline)
        if result.offsets is None:
            return result.verdict
        part.offsets, part.engine = result.offsets, "depth-first"
        part.height_bytes = result.height_bytes
    return Verdict.PACKED


def _lower(parts: Sequence[_Part], bound: int, deadline: float) -> None:
    """Lower the arena: the contention itself first, then by bisection between that and the best."""
    failed, target = bound - 1, bound
    while parts and time.monotonic() < deadline:
        height = max(part.height_bytes for part in parts)
        if height <= max(bound, (failed + 1) * (1 + PRECISION)):
            return
        share = _BOUND_SHARE if target == bound else _STEP_SHARE
        until = time.monotonic() + share * (deadline - time.monotonic())
        if _reach(parts, target, until) is not Verdict.PACKED:
            failed = target
        height = max(part.height_bytes for part in parts)
        target = failed + 1 + max(0, height - failed - 2) // 2

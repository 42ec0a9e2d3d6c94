"""Offsets of a timeline's buffers in ONNX Runtime's arena, if it holds one region from the start."""

from __future__ import annotations

from planner.graph.liveness import LiveTimeline
from planner.graph.model import Category
from planner.results import RegionLayout
from planner.runtime.memory.bfc import ROUNDING, BfcArena, Block, Growth, round_up


def one_region(line: LiveTimeline) -> RegionLayout:
    """Replay the arena's best fit over a timeline.

    Each buffer is placed at its first step, then the workspace of the step's kernel; persistent
    tensors lie below all of them. The region is larger than all buffers together: the layout alone
    decides how much of it is used.
    """
    scratch = line.by_category[Category.WORKSPACE].tolist()
    whole = sum(round_up(r.bytes) for r in line.ranges) + sum(map(round_up, scratch))
    arena = BfcArena(
        growth=Growth.DOUBLING,
        initial_chunk_bytes=max(whole, ROUNDING),
        max_dead_bytes=1,
        limit_bytes=None,
    )
    base: int | None = None
    starts: dict[int, list[int]] = {}
    ends: dict[int, list[int]] = {}
    for index, live in enumerate(line.ranges):
        starts.setdefault(live.start, []).append(index)
        ends.setdefault(live.end, []).append(index)
    blocks: dict[int, Block] = {}
    offsets = [line.persistent_bytes] * len(line.ranges)
    workspace: list[tuple[int, int, int]] = []
    top = line.persistent_bytes

    def place(size: int) -> tuple[Block, int]:
        nonlocal base, top
        block = arena.allocate(size)
        base = block.offset if base is None else base
        offset = line.persistent_bytes + block.offset - base
        top = max(top, offset + size)
        return block, offset

    for step, size in enumerate(scratch):
        for index in ends.get(step, ()):
            if index in blocks:
                arena.release(blocks.pop(index))
        for index in starts.get(step, ()):
            if line.ranges[index].bytes:
                blocks[index], offsets[index] = place(line.ranges[index].bytes)
        if size:
            block, offset = place(size)
            workspace.append((step, size, offset))
            arena.release(block)
    return RegionLayout(
        bytes=top,
        peak_bytes=line.peak_bytes,
        alignment_bytes=ROUNDING,
        offsets=tuple(offsets),
        workspace=tuple(workspace),
    )

"""One arena for a whole timeline: how far above the live bytes any static layout must go."""

from __future__ import annotations

from planner.graph.liveness import Timeline
from planner.graph.model import Category
from planner.plan.offsets import Buffer, pack
from planner.results import PackedArena

ALIGNMENT_BYTES = 256  # what ONNX Runtime's arena rounds to, and what CUDA's allocator gives
TIME_LIMIT_S = 3.0


def packed_arena(line: Timeline) -> PackedArena:
    """Pack every buffer and workspace of `line`, above the persistent tensors."""
    buffers = [
        Buffer(start=r.start, end=r.end, size_bytes=r.bytes, alignment=ALIGNMENT_BYTES)
        for r in line.ranges
    ]
    buffers += [
        Buffer(start=step, end=step + 1, size_bytes=size, alignment=ALIGNMENT_BYTES)
        for step, size in enumerate(line.by_category[Category.WORKSPACE].tolist())
        if size
    ]
    packing = pack(buffers, time_limit_s=TIME_LIMIT_S)
    return PackedArena(
        bytes=line.persistent_bytes + packing.height_bytes,
        peak_bytes=line.peak_bytes,
        alignment_bytes=ALIGNMENT_BYTES,
    )

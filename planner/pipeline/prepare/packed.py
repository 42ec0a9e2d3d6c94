"""One arena for a whole timeline: how far above the live bytes any static layout must go."""

from __future__ import annotations

from planner.graph.liveness import Timeline
from planner.graph.model import Category
from planner.pack.pack import Buffer, pack
from planner.results import PackedArena

ALIGNMENT_BYTES = 256  # what ONNX Runtime's arena rounds to, and what CUDA's allocator gives
TIME_LIMIT_S = 1.0


def packed_arena(line: Timeline) -> PackedArena:
    """Pack every buffer and workspace of `line`, above the persistent tensors."""
    scratch = [
        (step, size)
        for step, size in enumerate(line.by_category[Category.WORKSPACE].tolist())
        if size
    ]
    lives = [(r.start, r.end, r.bytes) for r in line.ranges]
    lives += [(step, step + 1, size) for step, size in scratch]
    packing = pack(
        [
            Buffer(start=start, end=end, size_bytes=size, alignment=ALIGNMENT_BYTES)
            for start, end, size in lives
        ],
        time_limit_s=TIME_LIMIT_S,
    )
    offsets = [line.persistent_bytes + offset for offset in packing.offsets]
    return PackedArena(
        bytes=line.persistent_bytes + packing.height_bytes,
        peak_bytes=line.peak_bytes,
        alignment_bytes=ALIGNMENT_BYTES,
        offsets=tuple(offsets[: len(line.ranges)]),
        workspace=tuple(
            (step, size, offset)
            for (step, size), offset in zip(scratch, offsets[len(line.ranges) :], strict=True)
        ),
    )

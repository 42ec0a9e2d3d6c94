"""Buffers whose least arena is known."""

from __future__ import annotations

import random

from planner.pack.pack import Buffer


def guillotine(seed: int, pieces: int, *, steps: int = 200, height: int = 1 << 12) -> list[Buffer]:
    """A run of `steps` by `height` bytes, cut edge to edge into buffers: it packs into `height`."""
    draw = random.Random(seed)
    areas = [(0, steps, height)]
    while len(areas) < pieces:
        areas.sort(key=lambda a: (a[1] - a[0]) * a[2])
        start, end, size = areas.pop(draw.randrange(len(areas) // 2, len(areas)))
        if draw.random() < 0.5 and end - start > 1:
            cut = draw.randrange(start + 1, end)
            areas += [(start, cut, size), (cut, end, size)]
        elif size > 1:
            cut = draw.randrange(1, size)
            areas += [(start, end, cut), (start, end, size - cut)]
        else:
            areas.append((start, end, size))
    draw.shuffle(areas)
    return [Buffer(start=start, end=end, size_bytes=size) for start, end, size in areas]

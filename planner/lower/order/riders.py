"""Riders: steps that move no bytes, and may therefore run as soon as their inputs exist.

A view that runs early holds no additional bytes. Therefore no node has to pin its place: in the file
it follows directly after the node that it is a view of, and the wanted sequence leaves it out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Carried:
    """A sequence without its riders.

    Attributes:
        carriers: the remaining steps, by their place in the whole sequence.
        parents: for each carrier, the carriers whose outputs, or whose riders' outputs, it reads, by
            their places in `carriers`.
        riders: for each carrier, its riders; first: riders without a carrier, which come before all.
    """

    carriers: tuple[int, ...]
    parents: tuple[tuple[int, ...], ...]
    riders: tuple[tuple[int, ...], ...]
    first: tuple[int, ...]


def carried(parents: Sequence[Sequence[int]], may_ride: Sequence[bool]) -> Carried:
    """Leave out riders: steps that may ride, are read, and read at most one step themselves.

    Of two producers of a node, ONNX Runtime's search visits the later one in the file first. A rider
    directly after the step that it reads stands for that step there.

    Args:
        parents: for each step, the steps whose outputs it reads; all smaller than the step.
        may_ride: for each step, whether it moves no bytes.
    """
    read = {p for ps in parents for p in ps}
    carrier: list[int | None] = []
    carriers: list[int] = []
    kept_parents: list[tuple[int, ...]] = []
    riders: list[list[int]] = []
    first: list[int] = []
    for step, ps in enumerate(parents):
        found = {c for p in ps if (c := carrier[p]) is not None}
        if may_ride[step] and step in read and len(set(ps)) <= 1:
            of = next(iter(found), None)
            carrier.append(of)
            (first if of is None else riders[of]).append(step)
            continue
        carrier.append(len(carriers))
        carriers.append(step)
        kept_parents.append(tuple(sorted(found)))
        riders.append([])
    return Carried(
        carriers=tuple(carriers),
        parents=tuple(kept_parents),
        riders=tuple(map(tuple, riders)),
        first=tuple(first),
    )

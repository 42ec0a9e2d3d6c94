"""Steps that move no bytes, and so may run as soon as what they read is there.

A view that runs early holds nothing that is not held anyway. So no node has to pin where it runs: in
the file it stands right behind what it is a view of, and in the wanted sequence it is left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Carried:
    """A sequence without its riders.

    Attributes:
        carriers: the steps that are left, by their place in the whole sequence.
        parents: for each of these, the carriers whose outputs it reads, or a rider's of it: by their
            places in `carriers`.
        riders: for each of these, its riders; `first` those of none, which stand before all.
    """

    carriers: tuple[int, ...]
    parents: tuple[tuple[int, ...], ...]
    riders: tuple[tuple[int, ...], ...]
    first: tuple[int, ...]


def carried(parents: Sequence[Sequence[int]], may_ride: Sequence[bool]) -> Carried:
    """Leave out what rides: a step that may, is read, and itself reads one step at most.

    Between two producers of a node, ONNX Runtime's search goes to the later one in the file first. A
    rider right behind the step that it reads stands for that step there.

    Args:
        parents: for each step, the steps whose outputs it reads; all smaller than the step.
        may_ride: whether it moves no bytes.
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

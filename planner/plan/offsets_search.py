"""The search for a packing of one part within a capacity: beam search and CP-SAT in turns.

The beam does well where every section has a little slack, CP-SAT where many have none; the luck of
both depends on their draws (order of buffers, seed), so each gets many short turns, growing with time.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from planner.plan.offsets_beam import BeamSearch, Effort
from planner.plan.offsets_cpsat import SectionModel, Verdict
from planner.plan.offsets_instance import Instance, Ints

# what packed most of the instances published with MiniMalloc per state looked at
_WIDTHS = (8, 8, 16, 16, 32, 32, 64)
_BRANCHES = (5, 8, 12)
_SOFTNESS = (0.001, 0.01, 0.1)
_FEATURE_WEIGHTS = (1.0, 0.7, 1.5)
_OPENING_EFFORTS = (
    Effort(width=1, branch=1, softness=0.01),
    Effort(width=2, branch=4, softness=0.01),
    Effort(width=8, branch=8, softness=0.01),
)
_OPENING_WEIGHTS = ((0, 1, 0), (100, 0.3, 1), (0, 0, 1))  # size; busiest, then longest; longest
# a turn of the beam: whichever comes first, about a second
_TURN_STATES = 30_000
_TURN_TRIES = 30
_GROWTH = 1.25


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What a search came to: where packed, the offsets and height in bytes."""

    verdict: Verdict
    offsets: Ints | None = None
    height_bytes: int = 0
    engine: str = ""


class PartSearch:
    """All searches for packings of one instance."""

    def __init__(self, instance: Instance, *, seed: int) -> None:
        self._instance = instance
        self._draws = np.random.default_rng(seed)
        self._beam: BeamSearch | None = None

    def within(self, capacity_bytes: int, *, deadline: float) -> Result:
        """Look for a packing within `capacity_bytes` until the deadline (of `time.monotonic`)."""
        use_beam, use_model = BeamSearch.suits(self._instance), SectionModel.suits(self._instance)
        model = None
        tries = self._tries()
        turn = 1.0
        while (use_beam or use_model) and time.monotonic() < deadline:
            if use_beam:
                offsets = self._beam_turn(capacity_bytes, tries, turn, deadline)
                if offsets is not None:
                    return self._packed(offsets, "beam")
            left = deadline - time.monotonic()
            if use_model and left > 0:
                model = model or SectionModel(self._instance, capacity_bytes)
                seed = int(self._draws.integers(1 << 31))
                verdict, offsets = model.solve(seed=seed, effort=turn, time_limit_s=left)
                if offsets is not None:
                    return self._packed(offsets, "cp-sat")
                if verdict is Verdict.IMPOSSIBLE:
                    return Result(verdict=verdict)
            turn *= _GROWTH
        return Result(verdict=Verdict.UNDECIDED)

    def _packed(self, offsets: Ints, engine: str) -> Result:
        in_bytes = offsets * self._instance.unit_bytes
        height = int((in_bytes + self._instance.size_bytes).max())
        return Result(verdict=Verdict.PACKED, offsets=in_bytes, height_bytes=height, engine=engine)

    def _beam_turn(
        self,
        capacity_bytes: int,
        tries: Iterator[tuple[Ints, Effort]],
        turn: float,
        deadline: float,
    ) -> Ints | None:
        self._beam = self._beam or BeamSearch(self._instance)
        looked_at = 0
        for rank, effort in itertools.islice(tries, round(_TURN_TRIES * turn)):
            if looked_at >= _TURN_STATES * turn or time.monotonic() > deadline:
                break
            if self._beam.affordable(effort):
                offsets, states = self._beam.search(capacity_bytes, rank, effort, deadline=deadline)
                if offsets is not None:
                    return offsets
                looked_at += states
        return None

    def _tries(self) -> Iterator[tuple[Ints, Effort]]:
        """Orders of buffers, and efforts: narrow beams with plain orders first, then drawn ones.

        An order weighs three features of a buffer: the load of its busiest section, its size and its
        lifetime, all as logarithms in standard units; some draws put the load before all else.
        """
        instance, draws = self._instance, self._draws
        features = np.stack(
            [
                _standardized(np.log(x.astype(np.float64)))
                for x in (instance.tightest, instance.size, instance.lifetime)
            ]
        )
        for effort in _OPENING_EFFORTS:
            for weights in _OPENING_WEIGHTS:
                yield _ranked(np.array(weights) @ features), effort
        while True:
            score = draws.dirichlet(_FEATURE_WEIGHTS) @ features
            score += draws.choice((0, 0.05, 0.2)) * draws.normal(size=len(instance))
            if draws.random() < 0.5:
                score += 10 * features[0]
            yield (
                _ranked(score),
                Effort(
                    width=int(draws.choice(_WIDTHS)),
                    branch=int(draws.choice(_BRANCHES)),
                    softness=float(draws.choice(_SOFTNESS)),
                ),
            )


def _standardized(x: np.ndarray) -> np.ndarray:
    return (x - x.mean()) / (x.std() + 1e-9)


def _ranked(score: np.ndarray) -> Ints:
    """Place of each buffer when they go by falling score; int64 [buffers]."""
    rank = np.empty(len(score), dtype=np.int64)
    rank[np.argsort(-score, kind="stable")] = np.arange(len(score))
    return rank

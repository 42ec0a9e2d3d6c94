"""The search for a packing of one part within a capacity: depth-first, beam and CP-SAT in turns.

Depth-first search packs most by far, and proves small parts impossible; the beam takes more buffers
than its tables can, and CP-SAT learns where many sections have no slack at all. The luck of each
depends on its draws (order of buffers, seed), so each gets many short turns, growing with time.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from planner.pack.beam import BeamSearch, Effort
from planner.pack.cpsat import SectionModel, Verdict
from planner.pack.depth_first import DepthFirst, Outcome, Pick
from planner.pack.instance import Instance, Ints

Floats = npt.NDArray[np.float64]

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
# a turn of the depth-first search: about a second
_TURN_CELLS = 300_000_000
# T: busiest section; A: area; W: lifetime; S: sections; Z: size; chosen on MiniMalloc's instances
_OPENING_ORDERS = ("TWA", "TAW", "SA", "ZW")
_OPENING_LENGTHS, _LENGTHS = (2, 8), (4, 8, 16)  # states of a run, over the number of buffers
_NOISE = (0, 0.05, 0.2, 0.5)
_LOWEST_SHARE = 0.3


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
        use_depth = DepthFirst.suits(self._instance)
        depth = DepthFirst(self._instance, capacity_bytes) if use_depth else None
        model = None
        runs, tries = self._runs(), self._tries()
        turn = 1.0
        while (depth or use_beam or use_model) and time.monotonic() < deadline:
            if depth:
                outcome, offsets = self._depth_turn(depth, runs, turn, deadline)
                if offsets is not None:
                    return self._packed(offsets, "depth-first")
                if outcome is Outcome.EXHAUSTED:
                    return Result(verdict=Verdict.IMPOSSIBLE)
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

    def _depth_turn(
        self,
        search: DepthFirst,
        runs: Iterator[tuple[Ints, Pick, int]],
        turn: float,
        deadline: float,
    ) -> tuple[Outcome, Ints | None]:
        members = int((self._instance.last - self._instance.first).sum())
        left = turn * _TURN_CELLS / members
        outcome, offsets = Outcome.OUT_OF_STATES, None
        while outcome is Outcome.OUT_OF_STATES and left > 0 and time.monotonic() < deadline:
            rank, pick, states = next(runs)
            states = round(states * turn)
            outcome, offsets = search.search(rank, pick, most_states=states, deadline=deadline)
            left -= states
        return outcome, offsets

    def _runs(self) -> Iterator[tuple[Ints, Pick, int]]:
        """Orders of buffers, picks and states of depth-first runs: plain orders, then drawn ones."""
        instance, draws = self._instance, self._draws
        by = {
            "T": instance.tightest,
            "A": instance.size * instance.lifetime.astype(np.float64),
            "W": instance.lifetime,
            "S": instance.last - instance.first,
            "Z": instance.size,
        }
        for length, pick, keys in itertools.product(_OPENING_LENGTHS, Pick, _OPENING_ORDERS):
            order = np.lexsort([-by[key] for key in reversed(keys)])
            yield _places(order), pick, length * len(instance)
        features = self._features()
        while True:
            score = self._drawn_score(features, _NOISE)
            pick = Pick.LOWEST if draws.random() < _LOWEST_SHARE else Pick.FEWEST_CHOICES
            yield _ranked(score), pick, int(draws.choice(_LENGTHS)) * len(instance)

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
        """Orders of buffers, and efforts: narrow beams with plain orders first, then drawn ones."""
        draws, features = self._draws, self._features()
        for effort in _OPENING_EFFORTS:
            for weights in _OPENING_WEIGHTS:
                yield _ranked(np.array(weights) @ features), effort
        while True:
            yield (
                _ranked(self._drawn_score(features, (0, 0.05, 0.2))),
                Effort(
                    width=int(draws.choice(_WIDTHS)),
                    branch=int(draws.choice(_BRANCHES)),
                    softness=float(draws.choice(_SOFTNESS)),
                ),
            )

    def _features(self) -> Floats:
        """The busiest section's load, size and lifetime, as logarithms in standard units."""
        instance = self._instance
        return np.stack(
            [
                _standardized(np.log(x.astype(np.float64)))
                for x in (instance.tightest, instance.size, instance.lifetime)
            ]
        )

    def _drawn_score(self, features: Floats, noise: Sequence[float]) -> Floats:
        """Weights of the features, and noise; half of the draws put the load before all else."""
        draws = self._draws
        score = draws.dirichlet(_FEATURE_WEIGHTS) @ features
        score += draws.choice(noise) * draws.normal(size=len(self._instance))
        if draws.random() < 0.5:
            score += 10 * features[0]
        return score


def _standardized(x: Floats) -> Floats:
    return (x - x.mean()) / (x.std() + 1e-9)


def _ranked(score: Floats) -> Ints:
    """Place of each buffer when they go by falling score; int64 [buffers]."""
    return _places(np.argsort(-score, kind="stable"))


def _places(order: Ints) -> Ints:
    """Place of each buffer in an order; int64 [buffers]."""
    rank = np.empty(len(order), dtype=np.int64)
    rank[order] = np.arange(len(order))
    return rank

"""The search for a packing of one part within a capacity: depth-first, in many runs.

The luck of a run depends on its draws (the order of buffers, what is placed next), so there are many
short ones, growing with time. Small parts that cannot be packed are proved to be so.
"""

from __future__ import annotations

import enum
import itertools
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from planner.pack.depth_first import DepthFirst, Outcome, Pick
from planner.pack.instance import Instance, Ints

Floats = npt.NDArray[np.float64]

_FEATURE_WEIGHTS = (1.0, 0.7, 1.5)  # what packed most of the instances published with MiniMalloc
_GROWTH = 1.25
# a turn: about a second
_TURN_CELLS = 300_000_000
# T: busiest section; A: area; W: lifetime; S: sections; Z: size; chosen on MiniMalloc's instances
_OPENING_ORDERS = ("TWA", "TAW", "SA", "ZW")
_OPENING_LENGTHS, _LENGTHS = (2, 8), (4, 8, 16)  # states of a run, over the number of buffers
_NOISE = (0, 0.05, 0.2, 0.5)
_LOWEST_SHARE = 0.3


class Verdict(enum.Enum):
    """How a search for a packing ended."""

    PACKED = enum.auto()
    IMPOSSIBLE = enum.auto()
    UNDECIDED = enum.auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What a search came to: where packed, the offsets and height in bytes."""

    verdict: Verdict
    offsets: Ints | None = None
    height_bytes: int = 0


class PartSearch:
    """All searches for packings of one instance."""

    def __init__(self, instance: Instance, *, seed: int) -> None:
        self._instance = instance
        self._draws = np.random.default_rng(seed)

    def within(self, capacity_bytes: int, *, deadline: float) -> Result:
        """Look for a packing within `capacity_bytes` until the deadline (of `time.monotonic`)."""
        if not DepthFirst.suits(self._instance):
            return Result(verdict=Verdict.UNDECIDED)
        depth = DepthFirst(self._instance, capacity_bytes)
        runs, turn = self._runs(), 1.0
        while time.monotonic() < deadline:
            outcome, offsets = self._turn(depth, runs, turn, deadline)
            if offsets is not None:
                return self._packed(offsets)
            if outcome is Outcome.EXHAUSTED:
                return Result(verdict=Verdict.IMPOSSIBLE)
            turn *= _GROWTH
        return Result(verdict=Verdict.UNDECIDED)

    def _packed(self, offsets: Ints) -> Result:
        in_bytes = offsets * self._instance.unit_bytes
        height = int((in_bytes + self._instance.size_bytes).max())
        return Result(verdict=Verdict.PACKED, offsets=in_bytes, height_bytes=height)

    def _turn(
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

"""What `planner fit` finds: which devices hold a model, at which size of it, and at what price."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from planner.results import LeastPeak

How = Literal["as it is", "recompute", "copies", "copies overlapped"]
"""What a model is let do to fit; nothing; other orders and recompute; copies to the host too, on the
stream of the operations, as ONNX Runtime runs them; copies beside the operations, which no card has run
yet."""

HOWS: tuple[How, ...] = ("as it is", "recompute", "copies", "copies overlapped")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """One device, and one way to fit it.

    Attributes:
        size: the largest size of the asked dim that fits, of those tried; 0 where the model was looked at
            in one size only; None where nothing fits.
        peak_bytes: live bytes at that size; of the model as it is where that does not fit, at the least
            size.
        base_us: predicted time of a step of the model as it is at that size, whether it fits or not.
        time_us: predicted time of a step that fits.
        next_size: the next larger size that was tried; None where there was none.
        next_is_impossible: it is proved not to fit; else no plan was found.
    """

    how: How
    size: int | None
    peak_bytes: int | None
    base_us: float | None
    time_us: float | None
    next_size: int | None = None
    next_is_impossible: bool = False

    @property
    def fits(self) -> bool:
        """Whether anything does."""
        return self.size is not None

    @property
    def slowdown(self) -> float | None:
        """Added time as a ratio (0.05 for 5%)."""
        if self.time_us is None or not self.base_us:
            return None
        return max(0.0, self.time_us / self.base_us - 1)

    @property
    def per_second(self) -> float | None:
        """Of the asked dim's units (samples, where it is the batch), or steps where there is no dim."""
        if self.size is None or not self.time_us:
            return None
        return 1e6 * (self.size or 1) / self.time_us


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceFit:
    """One device.

    Attributes:
        hardware: name of its profile, or the file's path; title: of the device.
        memory_bytes: of the device; reserve_bytes of it are set aside.
        ways: of `HOWS`, in their order; those with copies are missing where the model
            cannot be copied, and where the host's memory is the device's.
    """

    hardware: str
    title: str
    memory_bytes: int
    reserve_bytes: int
    ways: tuple[Fit, ...]

    @property
    def budget_bytes(self) -> int:
        """What is left for a step."""
        return self.memory_bytes - self.reserve_bytes

    @property
    def fits(self) -> bool:
        """Whether it holds the model in any way that ONNX Runtime runs today."""
        return any(way.fits for way in self.ways if way.how != "copies overlapped")

    @property
    def best(self) -> Fit | None:
        """The way that fits the largest size, of those the quickest; None where nothing fits. Overlapped
        copies do not count: no card has run them."""
        ways = [way for way in self.ways if way.fits and way.how != "copies overlapped"]
        return max(ways, key=lambda w: (w.size or 0, -(w.slowdown or 0.0)), default=None)

    def way(self, how: How) -> Fit | None:
        """The row of one way; None where it was not looked at."""
        return next((way for way in self.ways if way.how == how), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharded:
    """The peak of each of several devices over which state is sharded, by arithmetic
    (`planner.pipeline.answer.sharding`).

    Attributes:
        devices: number of devices that train data-parallel, each on the model's own batch.
        zero_stage: of ZeRO: 1 shards the optimizer's state, 2 gradients too, 3 parameters too.
    """

    devices: int
    zero_stage: int
    peak_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceFits:
    """`planner fit`: every device that was asked for, as asked.

    Attributes:
        dims: sizes of the dims that have one; dim: the name of the one with several, or "".
        sizes: of `dim`, those that were looked at, ascending.
        least_size: the size that `least_peak` and `least_on_host` are of; 0 where there is no dim.
        least_peak: the least peak found with inputs and outputs on the device, and a bound; the same with
            all that may be there on the host, or None where nothing may.
        sharded: at the same size.
    """

    model_path: Path
    model_sha256: str
    dims: dict[str, int]
    dim: str
    sizes: tuple[int, ...]
    devices: tuple[DeviceFit, ...]
    least_size: int
    least_peak: LeastPeak
    least_on_host: LeastPeak | None
    sharded: tuple[Sharded, ...]
    reserve: str
    seed: int
    seconds: float
    assumptions: tuple[str, ...]

    @property
    def all_fit(self) -> bool:
        """Whether every device holds the model."""
        return all(device.fits for device in self.devices)

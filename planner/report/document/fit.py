"""The document of `planner fit`: devices that hold a model, its size there, and the cost in time."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import msgspec

from planner import __version__
from planner.cost.hardware import Hardware
from planner.defaults import AUTO_RESERVE
from planner.report.document import Document
from planner.results import LeastPeak
from planner.targets import devices
from planner.targets.backend import runs_here
from planner.units import counted, format_bytes

How = Literal["as it is", "recompute", "copies", "copies overlapped"]
"""The levers that a model may use to fit: none; order and recompute; copies to the host too, on the
stream of the operations, as ONNX Runtime runs them; copies beside the operations, which no card has
run yet."""

HOWS: tuple[How, ...] = ("as it is", "recompute", "copies", "copies overlapped")
TERMS = (
    "nothing was run on these devices: times are the rooflines of their profiles, bytes those of live "
    "tensors and of kernels' workspace on the CPU; other workspaces and fragmentation are not counted",
    "what fits is a plan that the simulator replayed; planner optimize --budget writes and verifies one",
)


class WayRow(Document, frozen=True):
    """One device, and one way to fit it.

    Attributes:
        size: the largest tried size of the swept dim that fits; None where none does, and without a
            swept dim.
        peak_bytes: live bytes at that size; where none fits, those of the model as it is at the least
            size.
        base_time_us: predicted step time of the model as it is at that size, whether it fits or not;
            time_us: predicted time of a step that fits.
        slowdown: added time as a ratio (0.05 for 5%).
        per_second: units of the swept dim per second (samples, where it is the batch), or steps without
            one.
        next_size: the next larger size that was tried; None where there was none.
        next_is_impossible: whether it is proved not to fit; otherwise no plan was found.
        what_if: whether no card has run it yet.
    """

    how: How
    fits: bool
    size: int | None
    peak_bytes: int | None
    base_time_us: float | None
    time_us: float | None
    slowdown: float | None
    per_second: float | None
    next_size: int | None
    next_is_impossible: bool
    what_if: bool


class DeviceRow(Document, frozen=True):
    """One device.

    Attributes:
        hardware: name of its profile, or the file's path; title: title of the device.
        memory_bytes: the device's memory; reserve_bytes of it are set aside, and budget_bytes left for a
            step.
        fits: whether it holds the model in a way that ONNX Runtime runs today; best: the way that fits
            the largest size, the fastest of several.
        ways: rows for `HOWS`, in their order; those with copies are missing where the model's tensors
            cannot be copied, and where the host's memory is the device's.
    """

    hardware: str
    title: str
    memory_bytes: int
    reserve_bytes: int
    budget_bytes: int
    fits: bool
    best: How | None
    verdict: str
    ways: tuple[WayRow, ...]

    def way(self, how: How | None) -> WayRow | None:
        """Return the row of one way; None where it was not tried."""
        return next((way for way in self.ways if way.how == how), None)


class LeastPeaks(Document, frozen=True):
    """Least peaks at `size` of the swept dim, with inputs and outputs on the device and on the host.

    `on_host` is None where no tensor may be on the host.
    """

    size: int | None
    on_device: LeastPeak
    on_host: LeastPeak | None


class Sharded(Document, frozen=True):
    """The peak of each of several devices over which state is sharded, by arithmetic
    (`planner.pipeline.answer.budgets.sharding`).

    Attributes:
        devices: number of devices that train data-parallel, each on the model's own batch.
        zero_stage: stage of ZeRO: 1 shards the optimizer's state, 2 gradients too, 3 parameters too.
    """

    devices: int
    zero_stage: int
    peak_bytes: int


class FitDocument(Document, kw_only=True, frozen=True):
    """All devices that the user asked for, in that order.

    Attributes:
        dims: sizes of the dims that have one; dim: name of the swept dim, which has several.
        sizes: the sizes of `dim` that were tried, ascending.
        composition_at_peak: bytes of the model as it is, by category, at the size of `least`.
        sharded: peaks at that size.
        next: the command for the first device that needs a plan or has none.
    """

    schema: Literal["planner.fit/1"] = "planner.fit/1"
    planner_version: str = __version__
    model: str = ""
    model_sha256: str
    dims: dict[str, int]
    sizes: tuple[int, ...]
    reserve: str
    seed: int
    seconds: float
    all_fit: bool
    dim: str | None
    sentence: str = ""
    devices: tuple[DeviceRow, ...]
    least: LeastPeaks
    composition_at_peak: dict[str, int]
    sharded: tuple[Sharded, ...]
    next: str | None = None
    assumptions: tuple[str, ...]

    def named(self, model: Path) -> FitDocument:
        """Name the model, and add the sentence and the next command."""
        found = msgspec.structs.replace(self, model=str(model))
        return msgspec.structs.replace(found, sentence=_sentence(found), next=_next(found))


def device_row(
    name: str,
    hardware: Hardware,
    budget_bytes: int,
    ways: Sequence[WayRow],
    dim: str,
    least: LeastPeaks,
) -> DeviceRow:
    """Make the row of a device from the ways to fit it."""
    fitting = [way for way in ways if way.fits and not way.what_if]
    best = max(fitting, key=lambda w: (w.size or 0, -(w.slowdown or 0.0)), default=None)
    has_copies = any(way.how == "copies" for way in ways)
    return DeviceRow(
        hardware=name,
        title=hardware.title,
        memory_bytes=hardware.memory_bytes,
        reserve_bytes=hardware.memory_bytes - budget_bytes,
        budget_bytes=budget_bytes,
        fits=best is not None,
        best=None if best is None else best.how,
        verdict=_none_fits(least, has_copies) if best is None else _verdict(best, dim),
        ways=tuple(ways),
    )


def _none_fits(least: LeastPeaks, has_copies: bool) -> str:
    """Say that nothing fits, and the least peak."""
    peak_bytes = least.on_device.peak_bytes
    if has_copies and least.on_host is not None:
        peak_bytes = min(peak_bytes, least.on_host.peak_bytes)
    return f"no: least {format_bytes(peak_bytes)}"


def _verdict(best: WayRow, dim: str) -> str:
    """Say how the model fits, in a few words."""
    what = f"{dim} {best.size:,}" if dim else "fits"
    if best.how == HOWS[0]:
        return f"{what} as it is"
    return f"{what} at ×{1 + (best.slowdown or 0.0):.2f} ({best.how})"


def _next(found: FitDocument) -> str | None:
    """Write the command for the first device that needs a plan or has none.

    Return None where every device holds the model as it is.
    """
    dims = dict(found.dims)
    for device in found.devices:
        best = device.way(device.best)
        if best is not None and best.how == HOWS[0] and not found.dim:
            continue
        if found.dim:
            size = found.least.size if best is None or best.size is None else best.size
            dims[found.dim] = size or 0
        words = ["planner", "optimize", found.model]
        words += [word for name, size in dims.items() for word in ("--dim", f"{name}={size}")]
        words += ["--hardware", device.hardware]
        if device.way("copies") is None:
            words += ["--budget", f"{device.budget_bytes}B"]
        else:  # the device's memory, less the reserve, is the default budget
            card = next(t for t in devices() if t.is_arena)
            words += ["--device", card.name]
            words += [] if found.reserve == AUTO_RESERVE else ["--reserve", found.reserve]
            words += [] if runs_here(card) else ["--no-verify"]
        if best is None:
            words += ["--micro-batch", "auto"]
        return shlex.join(words)
    return None


def _sentence(found: FitDocument) -> str:
    """Say how many devices hold the model, and which do not."""
    as_is = sum(1 for device in found.devices if device.ways[0].fits)
    missing = [device.hardware for device in found.devices if not device.fits]
    count = len(found.devices)
    what = f" some {found.dim}" if found.dim else " it"
    text = f"{count - len(missing)} of {counted(count, 'device')} hold{what}, {as_is} as it is"
    if missing:
        text += f"; no plan found for {', '.join(missing)}"
    return f"{text} (predicted)."

"""The document of `planner fit`: devices that hold a model, at which size of it, and at what price."""

from __future__ import annotations

import shlex
from typing import Literal

from planner import __version__
from planner.device_fits import HOWS, DeviceFit, DeviceFits, Fit, Sharded
from planner.report.document import Document, told
from planner.results import LeastPeak
from planner.units import format_bytes

_TERMS = (
    "nothing was run on these devices: times are the rooflines of their profiles, bytes those of live "
    "tensors and of kernels' workspace on the CPU; other workspaces and fragmentation are not counted",
    "what fits is a plan that the simulator replayed; planner optimize --budget writes and verifies one",
)


class WayRow(Document, frozen=True):
    """One way to fit a device; `what_if` marks one that no card has run yet."""

    how: str
    fits: bool
    peak_bytes: int | None
    time_us: float | None
    slowdown: float | None
    per_second: float | None
    next_size: int | None
    next_is_impossible: bool
    what_if: bool
    size: int | None
    base_time_us: float | None


class DeviceRow(Document, frozen=True):
    """One device, and every way to fit it; `best` names one."""

    hardware: str
    title: str
    memory_bytes: int
    reserve_bytes: int
    budget_bytes: int
    fits: bool
    best: str | None
    verdict: str
    ways: tuple[WayRow, ...]


class LeastPeaks(Document, frozen=True):
    """Least peaks at `size` of the asked dim, with inputs and outputs on the device and on the host."""

    size: int | None
    on_device: LeastPeak
    on_host: LeastPeak | None


class FitDocument(Document, kw_only=True, frozen=True):
    """The document of `planner fit`."""

    schema: Literal["planner.fit/1"] = "planner.fit/1"
    planner_version: str = __version__
    model: str
    model_sha256: str
    dims: dict[str, int]
    sizes: tuple[int, ...]
    reserve: str
    seed: int
    seconds: float
    all_fit: bool
    dim: str | None
    sentence: str
    devices: tuple[DeviceRow, ...]
    least: LeastPeaks
    sharded: tuple[Sharded, ...]
    next: str | None
    assumptions: tuple[str, ...]


def fit_document(found: DeviceFits) -> FitDocument:
    """Make the document of `planner fit`."""
    return told(
        FitDocument,
        found,
        model=str(found.model_path),
        dim=found.dim or None,
        sentence=_sentence(found),
        devices=[_device(device, found) for device in found.devices],
        least=LeastPeaks(
            size=found.least_size or None,
            on_device=found.least_peak,
            on_host=found.least_on_host,
        ),
        next=_next(found),
        assumptions=(*_TERMS, *found.assumptions),
    )


def _device(device: DeviceFit, found: DeviceFits) -> DeviceRow:
    return told(
        DeviceRow,
        device,
        best=None if device.best is None else device.best.how,
        verdict=_verdict(device, found),
        ways=[_way(way, bool(found.dim)) for way in device.ways],
    )


def _way(way: Fit, has_dim: bool) -> WayRow:
    return told(
        WayRow,
        way,
        what_if=way.how == "copies overlapped",
        size=way.size if has_dim else None,
        base_time_us=way.base_us,
    )


def _verdict(device: DeviceFit, found: DeviceFits) -> str:
    """Say whether the model fits, in a few words."""
    best = device.best
    if best is None:
        least = found.least_peak
        if device.way("copies") is not None and found.least_on_host is not None:
            least = min(least, found.least_on_host, key=lambda one: one.peak_bytes)
        return f"no: least {format_bytes(least.peak_bytes)}"
    what = f"{found.dim} {best.size:,}" if found.dim else "fits"
    if best.how == HOWS[0]:
        return f"{what} as it is"
    return f"{what} at ×{1 + (best.slowdown or 0.0):.2f} ({best.how})"


def _next(found: DeviceFits) -> str | None:
    """Write the command for the first device that needs a plan or has none; None where every device holds
    the model as it is."""
    dims = dict(found.dims)
    for device in found.devices:
        best = device.best
        if best is not None and best.how == HOWS[0] and not found.dim:
            continue
        if found.dim:
            dims[found.dim] = found.least_size if best is None or best.size is None else best.size
        words = ["planner", "optimize", str(found.model_path)]
        words += [word for name, size in dims.items() for word in ("--dim", f"{name}={size}")]
        words += ["--hardware", device.hardware]
        words += [] if device.way("copies") is None else ["--device", "cuda"]
        words += ["--budget", f"{device.budget_bytes}B"]
        if best is None:
            words += ["--micro-batch", "auto"]
        return shlex.join(words)
    return None


def _sentence(found: DeviceFits) -> str:
    """Say how many fit, and which do not."""
    as_is = sum(1 for device in found.devices if device.ways[0].fits)
    fitting = sum(1 for device in found.devices if device.fits)
    count = len(found.devices)
    what = f" some {found.dim}" if found.dim else ""
    text = f"{fitting} of {count} device(s) hold{what if found.dim else ' it'}, {as_is} as it is"
    missing = [device.hardware for device in found.devices if not device.fits]
    if missing:
        text += f"; no plan found for {', '.join(missing)}"
    return f"{text} (predicted)."

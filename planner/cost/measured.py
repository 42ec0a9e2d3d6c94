"""Measured operation times: a user's profile's, and this machine's, cached under a digest of both."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from planner.choices import HOST_PROFILE
from planner.cost.hardware import Hardware, load_hardware
from planner.cost.model import durations_us
from planner.errors import PlannerError, UsageError
from planner.files.keeping import cache_folder, keep
from planner.files.structuring import Source, fields_of, read_json, structured
from planner.graph.model import TrainingGraph
from planner.units import counted

Durations = tuple[tuple[float, ...], tuple[str, ...]]

_VERSION = 5
_MAX_KEPT = 200
"""Number of files of measured times to keep; the oldest are deleted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cache:
    """The processor's last cache.

    Attributes:
        bytes: its capacity.
        missed_bytes_per_s: bandwidth of memory fetches: the bytes that an operation misses, over
            this, are its added time.
    """

    bytes: int
    missed_bytes_per_s: float

    def added_us(self, missed_bytes: int) -> float:
        """Return the microseconds that these missed bytes add; negative for fewer."""
        return missed_bytes / self.missed_bytes_per_s * 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredTimes:
    """Results of one short run of a model.

    Attributes:
        kernel_us: microseconds of each node, by name.
        runs: number of runs; the times are the least over them.
        copy_out_bytes_per_s, copy_in_bytes_per_s: bandwidth of copies to the host and from it; 0 if
            ONNX Runtime has none here.
        pageable_bytes_per_s: of copies of a caller's inputs; 0 if not measured.
        pin_us: time of a node that pins the order, or of a view.
        waited: share of the time that threads waited for a core, because the machine was busy.
        cache: of the processor; None if not measured.
    """

    kernel_us: dict[str, float]
    runs: int
    copy_out_bytes_per_s: float = 0.0
    copy_in_bytes_per_s: float = 0.0
    pageable_bytes_per_s: float = 0.0
    pin_us: float = 0.0
    waited: float = 0.0
    cache: Cache | None = None

    def hardware(self, profile: Hardware) -> Hardware:
        """Return the profile with the measured copy bandwidths."""
        if not self.copy_out_bytes_per_s:
            return profile
        return replace(
            profile,
            copy_to_host_bytes_per_s=self.copy_out_bytes_per_s,
            copy_from_host_bytes_per_s=self.copy_in_bytes_per_s,
            pageable_bytes_per_s=self.pageable_bytes_per_s,
        )

    def durations(self, graph: TrainingGraph, hardware: Hardware, what: str) -> Durations:
        """Return the microseconds of each operation by OpId, and the assumptions made.

        An unmeasured node gets its roofline time, scaled by measured over roofline time of the
        others; an unmeasured view takes no time.

        Args:
            what: names the measurement in messages: "the profile".

        Raises:
            UsageError: none of the graph's nodes was measured.
        """
        modelled, _ = durations_us(graph, hardware)
        found = [op for op in graph.operations if op.name in self.kernel_us]
        if not found:
            raise UsageError(
                f"{what} names none of the model's nodes; make it with the same model file, at "
                "optimization level EXTENDED"
            )
        base = sum(modelled[op.id] for op in found)
        scale = sum(self.kernel_us[op.name] for op in found) / base if base else 1.0
        result = tuple(
            self.kernel_us.get(op.name, 0.0 if op.is_view else modelled[op.id] * scale)
            for op in graph.operations
        )
        unseen = [op for op in graph.operations if op.name not in self.kernel_us]
        missing = [op.name for op in unseen if not op.is_view]
        if not missing:
            return result, ()
        some = ", ".join(missing[:3]) + (", ..." if len(missing) > 3 else "")
        note = (
            f"{counted(len(missing), 'operation')} not in {what} ({some}) get their roofline time times "
            f"{scale:.3g}"
        )
        return result, (note,)


def times_key(facts: Mapping[str, Any]) -> str:
    """Return the cache key of measured times: equal for the same model, session and machine.

    Args:
        facts: of the model and the session; any JSON values. The machine's facts are added.
    """
    cpus = len(os.sched_getaffinity(0))
    here = {"version": _VERSION, "processor": processor(), "cpus": cpus}
    text = json.dumps({**facts, **here}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def kept_times(key: str) -> MeasuredTimes | None:
    """Load the times cached under a key; None if there are none, or they cannot be read."""
    try:
        path = cache_folder() / _name(key)
        if not path.exists():
            return None
        source = Source(where=str(path), what="a file of measured times")
        return structured(read_json(path, dict, what=source.what), MeasuredTimes, source)
    except (PlannerError, OSError):
        return None


def keep_times(key: str, times: MeasuredTimes) -> Path | None:
    """Cache times under a key, in place of older ones; return None if they cannot be written."""
    content = json.dumps(times, default=fields_of).encode()
    try:
        path = keep(_name(key), content, renew=True)
        files = sorted(path.parent.glob(_name("*")), key=lambda p: p.stat().st_mtime)
    except (PlannerError, OSError):
        return None
    for old in files[:-_MAX_KEPT]:
        with contextlib.suppress(OSError):
            old.unlink()
    return path


def forget_times(key: str) -> None:
    """Delete the times cached under a key."""
    with contextlib.suppress(PlannerError, OSError):
        (cache_folder() / _name(key)).unlink(missing_ok=True)


def _name(key: str) -> str:
    return f"times-{key}.json"


def device_names() -> list[str]:
    """Return the names of NVIDIA devices, as its Linux driver lists them; empty if none."""
    named: list[str] = []
    for path in sorted(Path("/proc/driver/nvidia/gpus").glob("*/information")):
        with contextlib.suppress(OSError):
            lines = path.read_text(errors="replace").splitlines()
            named += [line.split(":", 1)[1].strip() for line in lines if line.startswith("Model")]
    return named


def processor() -> str:
    """Return the processor's model name, as far as the system reports it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
    except OSError:
        lines = []
    named = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor() or platform.machine())


def durations_from_profile(
    graph: TrainingGraph, profile_path: Path, hardware: Hardware | None = None
) -> Durations:
    """Return the microseconds of each operation by OpId from a profile, and the assumptions made.

    Each time is the median over the profile's runs, without the first if there are more (it
    allocates memory). A node that the profile lacks gets its roofline time, scaled by profiled over
    roofline time of the others.

    Args:
        profile_path: written by ONNX Runtime with `enable_profiling`.
        hardware: for the nodes that are missing; the cpu profile if None.

    Raises:
        ModelError: not a profile. UsageError: it names none of the graph's nodes.
    """
    from planner.runtime.profile import read_profile

    path = Path(profile_path)
    runs = read_profile(path)
    times: dict[str, list[int]] = {}
    for run in runs[1:] or runs:
        for event in run:
            times.setdefault(event.name, []).append(event.duration_us)
    medians = {name: float(statistics.median(values)) for name, values in times.items()}
    count = max(1, len(runs) - 1)
    measured = MeasuredTimes(kernel_us=medians, runs=count)
    result, notes = measured.durations(graph, hardware or load_hardware(HOST_PROFILE), path.name)
    return result, (
        f"operation times are medians of {counted(count, 'run')} in {path.name}",
        *notes,
    )

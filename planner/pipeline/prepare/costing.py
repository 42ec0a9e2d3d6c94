"""Sources of durations: a profile, a run on this machine, or the hardware's roofline."""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import onnx_ir as ir

from planner.choices import HOST_PROFILE
from planner.cost.hardware import Hardware
from planner.cost.measured import (
    Cache,
    MeasuredTimes,
    device_names,
    durations_from_profile,
    keep_times,
    kept_times,
    times_key,
)
from planner.cost.model import durations_us
from planner.errors import PlannerError
from planner.files.temporary import temporary_folder
from planner.graph.model import OpId, TrainingGraph
from planner.onnxio.load import LoadedModel
from planner.pipeline.prepare.timelines import full_timeline
from planner.request import Calibrate, Request
from planner.runtime.build import why_no_copies
from planner.runtime.machine import is_idle
from planner.runtime.optimizers.normalize import is_of_large_files
from planner.runtime.options import Level
from planner.targets import Target
from planner.units import counted, format_duration, format_percent

MEASURED = "measured on this machine"
"""Beginning of the source's name for times measured here."""

VARIABLE = "PLANNER_CALIBRATE"
"""Environment variable: "never" uses predicted times unless the request asks for others."""

_MAX_STEP_S = 10.0
"""Longest predicted step, in seconds, that is measured without being asked for."""

_SOME_VIEWS = 5
"""Fewer views than this say too little about the time of a node that moves no bytes."""

_MEMORY_SHARE = 2
"""Multiple of a model's peak that must be free: the arena takes more than the live bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Costed:
    """Durations of the operations of one graph.

    Attributes:
        duration_us: microseconds by OpId; `source` names their source.
        hardware: profile for operations that the graph lacks: copies, and nodes that planner adds.
        pin_us: time of a node that pins the order; 0 if times are predicted, because a roofline is
            coarser.
        cache: of the processor; None if times are predicted, or it is unknown.
        times_key: cache key of the measured times; empty if they are not cached.
        assumptions: one sentence each.
    """

    duration_us: tuple[float, ...]
    source: str
    hardware: Hardware
    pin_us: float = 0.0
    cache: Cache | None = None
    times_key: str = ""
    assumptions: tuple[str, ...] = ()


def can_be_timed(target: Target) -> bool:
    """Tell whether a target's device is here, with kernels whose end can be waited for."""
    from planner.targets.backend import backend_of

    return bool(target.waits) and backend_of(target).is_installed()


@dataclass(frozen=True, kw_only=True)
class Costing:
    """A graph whose operations need durations.

    Attributes:
        graph, order: as ONNX Runtime runs it.
        optimized: the model of `graph`.
        level: optimization level that produced the graph.
    """

    request: Request
    loaded: LoadedModel
    hardware: Hardware
    target: Target
    graph: TrainingGraph
    order: tuple[OpId, ...]
    optimized: ir.Model
    level: Level
    progress: Callable[[str], None]

    def costed(self) -> Costed:
        """Return the durations from the source that the request names, or the best available.

        Raises:
            UsageError: the profile names none of the graph's nodes, or inputs cannot be read.
            ModelError: a run was asked for, and ONNX Runtime cannot run the model.
        """
        profile = self.request.costs.profile
        if profile is not None:
            durations, said = durations_from_profile(self.graph, profile, self.hardware)
            return Costed(
                duration_us=durations,
                source=f"profile {profile.name}",
                hardware=self.hardware,
                assumptions=said,
            )
        mode = self._mode()
        if mode == "never":
            return self._predicted()
        key = self._key()
        if mode == "always":
            return self._from(self._measured(key), key)
        known = kept_times(key)
        kept = None if known is None else self._from(known, key, " in an earlier run")
        if kept is not None and not (mode == "auto" and known and known.waited and is_idle()):
            return kept
        if mode == "kept":
            return self._predicted()
        why = self._why_not()
        if why:
            return kept or self._predicted(why)
        try:
            return self._from(self._measured(key), key)
        except PlannerError as error:
            if self.request.inputs is not None:
                raise
            why = f"the model could not be run to measure them ({error})"
            return kept or self._predicted(why)

    def _mode(self) -> Calibrate:
        costs = self.request.costs
        if costs.calibrate != "auto":
            return costs.calibrate
        here = costs.hardware == HOST_PROFILE and (not self.target.own_memory or self._on_device)
        return "auto" if here and os.environ.get(VARIABLE) != "never" else "never"

    @cached_property
    def _on_device(self) -> bool:
        return can_be_timed(self.target)

    def _why_not(self) -> str:
        """Return why the model is not run unless the request asks for it; empty if it is run."""
        from planner.runtime.timing import available_bytes

        if self._on_device:
            return ""
        if is_of_large_files(self.loaded):
            return "initializers in files are not loaded for planning"
        available = available_bytes()
        if available is not None and _MEMORY_SHARE * self._peak_bytes > available:
            return "too little memory is free here to run the model"
        step_us = sum(durations_us(self.graph, self.hardware)[0])
        if step_us > _MAX_STEP_S * 1e6:
            return f"a step is predicted to take {format_duration(step_us)}"
        return ""

    @cached_property
    def _peak_bytes(self) -> int:
        return full_timeline(self.graph, self.order, self.target).peak_bytes

    def _predicted(self, why: str = "") -> Costed:
        durations, said = durations_us(self.graph, self.hardware)
        note = f"operation times were not measured: {why} (--calibrate measures them in any case)"
        return Costed(
            duration_us=durations,
            source=f"roofline of {self.hardware.name}",
            hardware=self.hardware,
            assumptions=(*said, *((note,) if why else ())),
        )

    def _measured(self, key: str) -> MeasuredTimes:
        from planner.processes.children import quiet
        from planner.runtime.device.client import op_times as device_times
        from planner.runtime.feeds.inputs import make_inputs

        request = self.request
        where = self.target.title if self._on_device else "this machine"
        self.progress(f"measuring operation times on {where} (--no-calibrate predicts them)")
        feeds, _ = make_inputs(request.model, request.seed, self.loaded.dims, request.inputs)
        with temporary_folder() as folder:
            path, level = self._to_run(folder)
            if self._on_device:
                found = device_times(self.target, path, feeds, level=level)
                times = replace(found, pin_us=self._pin_us(found))
            else:
                with quiet():
                    times = self._measured_here(path, feeds, level)
        keep_times(key, times)
        return times

    def _measured_here(self, path: Path, feeds: Mapping[str, Any], level: Level) -> MeasuredTimes:
        from planner.runtime.op_times import cache_of, op_times, small_times
        from planner.runtime.options import Opening, default_threads

        plain = Opening(level="disabled", threads=default_threads())
        opening = replace(plain, level=level)
        times = op_times(path, feeds, opening, nodes=len(self.graph.operations))
        times = replace(times, cache=cache_of(plain))
        if why_no_copies(self.target) is None:
            times = small_times(times, plain, touched_bytes=self._peak_bytes)
            times = replace(times, pin_us=self._pin_us(times))
        return times

    def _pin_us(self, times: MeasuredTimes) -> float:
        """Return the time of a node that moves no bytes, in microseconds.

        It is the median of the model's own views, measured among other nodes, if the model has
        enough of them; else the time in a model of such nodes alone.
        """
        names = (op.name for op in self.graph.operations if op.is_view)
        views = [times.kernel_us[name] for name in names if name in times.kernel_us]
        return statistics.median(views) if len(views) >= _SOME_VIEWS else times.pin_us

    def _to_run(self, folder: Path) -> tuple[Path, Level]:
        """Return a file whose session has the graph's nodes, and the level to open it at.

        A copy of the optimized graph needs no optimizers, which dominate the creation of a session
        for a large graph. If weights make the copy large, it is the model's own file.
        """
        from planner.runtime.profiled import may_copy

        if self.level == "disabled" or not may_copy(self.optimized, self.loaded):
            return self.request.model, self.level
        path = folder / "optimized.onnx"
        ir.save(self.optimized, path)
        return path, "disabled"

    def _from(self, times: MeasuredTimes, key: str, said: str = "") -> Costed:
        hardware = times.hardware(self.hardware)
        durations, notes = times.durations(self.graph, hardware, "the run that measured")
        runs = f"the least of {counted(times.runs, 'run')}"
        busy = (
            f"the machine was busy while operation times were measured (threads waited for a core for "
            f"{format_percent(times.waited)} of the time): they may be too long (--calibrate measures "
            "again)"
        )
        return Costed(
            duration_us=durations,
            source=f"{MEASURED}{said}",
            hardware=hardware,
            pin_us=times.pin_us,
            cache=times.cache,
            times_key=key,
            assumptions=(
                f"operation times are {MEASURED}: {runs}",
                *((busy,) if times.waited else ()),
                *notes,
            ),
        )

    def _key(self) -> str:
        import onnxruntime as ort

        inputs: list[Any] = []
        if self.request.inputs is not None:
            status = self.request.inputs.stat()
            inputs = [status.st_size, status.st_mtime_ns]
        return times_key(
            {
                "model": self.loaded.sha256,
                "dims": dict(self.loaded.dims),
                "level": self.level,
                "runtime": [ort.__version__, ort.get_build_info()],
                "inputs": inputs,
                "device": device_names() if self._on_device else [],
            }
        )

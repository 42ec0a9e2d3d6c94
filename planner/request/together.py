"""Options that contradict each other; the error names both."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from planner.errors import UsageError
from planner.targets import HOST, target_named, titles
from planner.units import parse_bytes


def check_together(said: Mapping[str, Any]) -> None:
    """Raise UsageError where two arguments contradict each other.

    Args:
        said: arguments by name; None counts as not given.
    """
    for problem in _problems(said):
        raise UsageError(problem)


def _problems(said: Mapping[str, Any]) -> Iterator[str]:
    reserve = said.get("reserve")
    if reserve not in (None, "auto") and (said.get("budget") or said.get("max_slowdown")):
        parse_bytes(reserve, what="--reserve", zero_ok=True)
    yield from _of_recompute(said)
    forbids = _forbids_copies(said)
    if said.get("copies") == "overlapped" and forbids:
        yield f"--copies overlapped needs copies, which {forbids} forbids: leave out one of the two"
    if said.get("disk") is not None:
        yield from _of_disk(said)
    elif said.get("disk_budget") is not None:
        yield "--disk-budget is for swaps to a disk: give its folder with --disk"
    if said.get("reproducible"):
        yield from _of_reproducible(said)
    if said.get("fuse", "none") != "none":
        yield from _of_fuse(said)
    if said.get("cast_saved", "none") != "none" and str(said.get("micro_batch", 1)) != "1":
        yield "--cast-saved is lossy, and --micro-batch is proved up to rounding: give one of them"


def _forbids_copies(said: Mapping[str, Any]) -> str:
    """The option that does; "" where none does."""
    if said.get("recompute") == "only":
        return "--recompute only"
    return "--swap none" if said.get("swap") == "none" else ""


def _of_recompute(said: Mapping[str, Any]) -> Iterator[str]:
    if said.get("recompute") != "only":
        return
    for name, other in (("swap", "none"), ("resident", "device")):
        if said.get(name) not in (None, other):
            yield f"--recompute only and --{name} {said[name]} contradict each other"


def _of_disk(said: Mapping[str, Any]) -> Iterator[str]:
    device = said.get("device")
    if device is not None and not target_named(device).is_host:
        yield (
            f"--disk is for files that run on {HOST.title}, and not on {device} yet: there, swaps "
            "go to host memory; leave out --disk"
        )
    if forbids := _forbids_copies(said):
        yield f"--disk needs swaps, which {forbids} forbids: leave out one of the two"
    if said.get("copies") == "serial":
        yield (
            "--disk swaps beside the operations, and --copies serial has copies between them: leave out "
            "one of the two"
        )
    if said.get("resident") == "host":
        yield (
            "--disk is for what is swapped within a step; tensors that live on the host stay in "
            "the CPU's memory: leave out --resident host"
        )
    if said.get("host_budget") is not None:
        yield "with --disk nothing is swapped to the host: give --disk-budget"


def _of_fuse(said: Mapping[str, Any]) -> Iterator[str]:
    mode, device = said["fuse"], said.get("device")
    if device is not None and target_named(device).fused is None:
        yield (
            f"--fuse {mode} is for {titles(lambda row: row.fused is not None)}: planner's native library "
            f"has no kernel of planner.fused::Pointwise for {device}; use --fuse none"
        )
    if said.get("budget") is None:
        yield f"--fuse {mode} needs a --budget (100% is one)"


def _of_reproducible(said: Mapping[str, Any]) -> Iterator[str]:
    """The same plan on any machine: no times of this one, one process."""
    if said.get("calibrate"):
        yield (
            "--reproducible plans with no times of this machine, and --calibrate measures them: give one"
        )
    if said.get("disk") is not None:
        yield (
            "--reproducible plans with no speed of this machine's, and --disk measures one: give one"
        )
    if said.get("jobs") not in (None, 1) or said.get("ray_address") is not None:
        yield "--reproducible searches in one process: leave --jobs and --ray out"

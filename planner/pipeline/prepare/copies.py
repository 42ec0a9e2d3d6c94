"""Whether copies are planned on the stream of the operations, or beside them.

ONNX Runtime runs everything of one device on one stream, its own copies included, and copies on streams
of their own are not safe in it: a buffer goes back to the arena when its last reader is *issued*
(`reports/overlap.md`). The operators of `planner.native` copy beside the operations and are safe by
construction: who still reads a buffer is an input of the node that waits for it. Files with them need
that library. Where it has been shown to give the same bits is in `planner.targets`.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from planner.disk import measured, room_in
from planner.errors import UsageError
from planner.targets import CPU, target_named

if TYPE_CHECKING:
    from planner.request import Levers

Copies = Literal["serial", "overlapped", "auto"]
COPIES: tuple[Copies, ...] = ("serial", "overlapped", "auto")

BESIDE = (
    "copies run beside the operations, by planner's native library, which sessions of the file load"
)

_UNPROVED = (
    "on {title} no card has been seen yet to give the same bits with it: verify the file there"
)

SHARED = "host copies share the CPU's memory: nothing is saved on this machine; shows what a GPU would do"
"""What copies are worth where a file runs on the CPU."""


def choose_copies(copies: str, swap: str, device: str) -> tuple[bool, str]:
    """(whether copies run beside the operations, why: a sentence for the plan's assumptions).

    "auto" overlaps on a device where that has been shown to be safe.

    Args:
        copies: one of `COPIES`.
        swap: what `--swap` says.
        device: where the model is to run.

    Raises:
        UsageError: an unknown choice, or copies that overlap where none are allowed, or where the library
            has no operators.
    """
    check_copies(copies, swap)
    target = target_named(device)
    if copies == "overlapped":
        if target.overlap == "never":
            raise UsageError(
                f"--copies overlapped: planner's library copies on the CPU and on CUDA, not on "
                f"{target.title}; use --copies serial"
            )
        is_new = target.own_memory and target.overlap != "proved"
        return True, f"{BESIDE}; {_UNPROVED.format(title=target.title)}" if is_new else BESIDE
    if copies == "serial" or swap == "none":
        return False, ""
    if target.overlap == "proved":
        return True, BESIDE
    return False, (
        "copies are planned on the stream of the operations: beside them they have not been shown to be "
        f"safe on {device}"
    )


def to_disk(levers: Levers, device: str, folder: Path | None, budget: str | None) -> Levers:
    """The levers with swaps to a file in a folder, whose disk is measured now; as they are where there is
    no folder.

    Args:
        levers: with copies that overlap, where there is a folder.
        budget: the most that swaps may take there: `"200GB"`; None for what is free.

    Raises:
        UsageError: what else is asked for contradicts it, or the folder cannot be written to.
    """
    if folder is None:
        if budget is not None:
            raise UsageError("--disk-budget is for swaps to a disk: give its folder with --disk")
        return levers
    if device != CPU.name:
        raise UsageError(
            f"--disk is for files that run on the CPU, and not on {device} yet: there, swaps go to the "
            "host's memory; leave out --disk"
        )
    if levers.swap == "none":
        raise UsageError("--disk needs swaps, which --swap none and --recompute only forbid")
    if levers.resident == "host":
        raise UsageError(
            "--disk is for what is swapped within a step; what lives on the host lies in the CPU's "
            "memory all the same: leave out --resident host"
        )
    if levers.host_budget is not None:
        raise UsageError("with --disk nothing is swapped to the host: give --disk-budget")
    return replace(
        levers,
        resident="device",
        host_budget=f"{room_in(folder, budget)}B",
        disk=measured(folder),
    )


def check_copies(copies: str, swap: str | None) -> None:
    """Raise UsageError where `copies` is none of `COPIES`, or overlaps copies that `swap` forbids."""
    if copies not in COPIES:
        raise UsageError(f"--copies is serial, overlapped or auto, not {copies!r}")
    if copies == "overlapped" and swap == "none":
        raise UsageError(
            "--copies overlapped needs copies, which --swap none forbids: leave out one of the two"
        )

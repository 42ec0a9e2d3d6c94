"""Defaults of options that are not given: the device, copies to the host, the budget of a card.

    device   with the profile of a CPU, the CPU. With the profile of another device, a file needs
             `--device`: the profile does not say which device the file is for. Predictions write no file,
             and need none.
    copies   as the plan likes, but none on a CPU: its memory is the host's, and a copy saves nothing.
    budget   none. With a profile of a device with a memory of its own, and a file for it: that memory,
             less the bytes that no plan may have (`set_aside`).

This module makes all of these decisions, where device and profile are known. Behind the public
functions, a `Request` holds the results.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from planner.choices import Copies, Reside, Swap
from planner.cost.hardware import Hardware, hardware_names, load_hardware
from planner.disk import measured, room_in
from planner.errors import UsageError
from planner.request import AUTO_RESERVE, Costs, Levers, Limits, Request, options_of
from planner.request.asking import Command
from planner.request.together import check_together
from planner.targets import HOST, Device, devices, listed, target_named
from planner.units import format_both, format_bytes, parse_bytes, parse_percent

ASIDE_BYTES = 1 << 30
"""Bytes of a card's memory that no plan may have: the driver's context, code of kernels, cuBLAS,
cuDNN.

A process took 0.66 to 0.89 GiB beside ONNX Runtime's arena with four networks on an H200 and one of them
on an H100 (NVML; "Beside the arena" in reports/cuda.md). For other devices it is an assumption."""

_ASIDE_SHARE = 10
"""The set-aside bytes are at most a tenth of the memory: an assumption, for small devices."""


def requested(command: Command, given: Mapping[str, Any]) -> Request:
    """Build the request from the arguments of a command's public function.

    Args:
        given: the arguments by name; names that are none of the command's options are ignored.

    Raises:
        UsageError: an argument is invalid, or two contradict each other.
    """
    options = options_of(command)
    said = {each.name: each.checked(given.get(each.name, each.unsaid)) for each in options}
    check_together({**given, **said})
    said |= _decided(command, said)
    parts: dict[str, dict[str, Any]] = {"": {}, "costs": {}, "levers": {}, "limits": {}}
    for option in options:
        parts[option.part][option.name] = option.take(said[option.name])
    return Request(
        model=Path(given["model"]),
        budget_from=said.get("budget_from", ""),
        costs=Costs(**parts["costs"]),
        levers=Levers(**parts["levers"]),
        limits=Limits(**parts["limits"]),
        **parts[""],
    )


def _decided(command: Command, said: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of options that were left open, or that follow from other options."""
    found: dict[str, Any] = {}
    if said.get("reproducible"):
        found |= {"calibrate": False}
    if "swap" in said:
        found |= _copies(command, said)
    if command == "optimize":
        found |= _budget({**said, **found})
    if said.get("disk") is not None:
        folder = Path(said["disk"])
        room = room_in(folder, said["disk_budget"])
        found |= {"resident": "device", "host_budget": f"{room}B", "disk": measured(folder)}
    return found


def _copies(command: Command, said: Mapping[str, Any]) -> dict[str, Any]:
    """Decide the device and the copies that a plan may make."""
    swap, resident, copies = said["swap"], said.get("resident"), said.get("copies")
    if said.get("recompute") == "only":
        swap, resident = "none", "device"
    if said.get("disk") is not None:  # no operator of ONNX Runtime's copies to a file
        copies = "overlapped"
    found = meant(
        device=said.get("device"),
        hardware=said["hardware"],
        swap=swap,
        resident=resident,
        copies=copies or "serial",
        is_written=command == "optimize",
    )
    return {
        "device": found.device,
        "swap": found.swap,
        "resident": found.resident,
        "copies": copies or "serial",
    }


def _budget(said: Mapping[str, Any]) -> dict[str, Any]:
    """Return the budget that a card's memory gives, where none is given.

    Raises:
        UsageError: there is no budget, and `--split auto` needs one.
    """
    found: dict[str, Any] = {}
    card = card_of(said["device"], said["hardware"])
    if said["budget"] is None and said["max_slowdown"] is None and card is not None:
        size, why = card_budget(card, said["reserve"])
        found = {"budget": f"{size}B", "budget_from": why, "reserve": AUTO_RESERVE}
    if said["split"] == "auto" and {**said, **found}["budget"] is None:
        raise UsageError(
            "--split auto splits what is too large for a budget: give a --budget beside --max-slowdown"
        )
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Meant:
    """The device of a model, and the copies that a plan may make."""

    device: Device
    swap: Swap
    resident: Reside


def meant(
    *,
    device: Device | None,
    hardware: str,
    swap: Swap | None,
    resident: Reside | None,
    copies: Copies = "serial",
    is_written: bool = True,
) -> Meant:
    """Decide the options that are None.

    A plan for a CPU with the profile of a CPU has no copies, unless an option asks for some: `swap`,
    `resident` of "auto" or "host", or `copies` of "overlapped". Other plans may have them: on GPUs they
    save memory.

    Args:
        hardware: name of a shipped profile, or a TOML file.
        is_written: whether the command writes a file.

    Raises:
        UsageError: the command writes a file, `device` is None, and `hardware` has a memory of its own;
            or no profile or device has that name.
    """
    profile = load_hardware(hardware)
    if device is None and is_written and not profile.is_host:
        raise UsageError(_which_device(profile, hardware))
    device = target_named(device or HOST.name).name
    if swap is None:
        asks = resident in ("auto", "host") or copies == "overlapped"
        is_shared = target_named(device).is_host and profile.is_host
        swap = "none" if is_shared and not asks else "auto"
    return Meant(device=device, swap=swap, resident=resident or "auto")


def card_of(device: Device | None, hardware: str) -> Hardware | None:
    """Return the profile of the card whose memory is the default budget; None where there is none.

    A card is a device that a file is for, with a memory of its own.
    """
    if device is None or target_named(device).is_host:
        return None
    profile = load_hardware(hardware)
    return None if profile.is_host else profile


def set_aside(hardware: Hardware, reserve: str = AUTO_RESERVE) -> int:
    """Return the bytes of a device's memory that no plan may have.

    Args:
        reserve: a size (`"2GB"`), a share (`"5%"`), or "auto": `ASIDE_BYTES`, or a tenth of the memory
            where that is less.

    Raises:
        UsageError: it is none of these, or takes all of the memory.
    """
    memory_bytes = hardware.memory_bytes
    if reserve == AUTO_RESERVE:
        return min(ASIDE_BYTES, memory_bytes // _ASIDE_SHARE)
    share = parse_percent(reserve)
    if share is None:
        size = parse_bytes(reserve, what="--reserve", zero_ok=True)
    else:
        size = int(share * memory_bytes)
    if size >= memory_bytes:
        raise UsageError(
            f"--reserve {reserve} takes all memory of {hardware.title}, {format_both(memory_bytes)}"
        )
    return size


def card_budget(hardware: Hardware, reserve: str = AUTO_RESERVE) -> tuple[int, str]:
    """Return (bytes of a device's memory that a plan may have, a phrase on how many and why).

    Raises:
        UsageError: see `set_aside`.
    """
    aside = set_aside(hardware, reserve)
    why = "--reserve"
    if reserve == AUTO_RESERVE:
        measured = "measured on an H200 and an H100, reports/cuda.md"
        why = f"driver, context and libraries: {measured if aside == ASIDE_BYTES else 'assumed'}"
    whole = format_bytes(hardware.memory_bytes)
    said = f"memory of {hardware.name}, {whole}, less {format_bytes(aside)} ({why})"
    return hardware.memory_bytes - aside, said


def _which_device(profile: Hardware, hardware: str) -> str:
    """Return the question that a profile leaves open, with its possible answers."""
    what = "is a GPU" if hardware in hardware_names() else "has a memory of its own"
    own = "" if hardware in hardware_names() else "; a CPU's profile says is_host = true"
    return (
        f"{hardware} {what} ({profile.title}), and a file is made for one device: add "
        f"{listed(f'--device {target.name}' for target in devices())} for a file that runs there, or "
        f"--device {HOST.name} for a file for {HOST.title}, planned with the times of {profile.name}{own}"
    )

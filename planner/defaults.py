"""What is meant where nothing is said: the device, copies to the host, the budget of a card.

    device   with the profile of a CPU, the CPU. A device with a memory of its own is no answer to what a
             file is for, so that a file needs `--device`; predictions write none, and need none.
    copies   as the plan likes, but none on a CPU: its memory is the host's, and a copy saves nothing.
    budget   none. With a profile of a device with a memory of its own, and a file for it: that memory,
             less what no plan has (`set_aside`).

All of it is decided here, where device and profile are known; behind the public functions a `Request`
says what was decided.
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
"""Of a card's memory, for what no plan has: the driver's context, the code of kernels, cuBLAS, cuDNN.

A process took 0.66 to 0.89 GiB beside ONNX Runtime's arena with four networks on an H200 and one of them
on an H100 (NVML; "Beside the arena" in reports/cuda.md). For other devices it is an assumption."""

_ASIDE_SHARE = 10
"""Never more than a tenth of the memory: on a small device, an assumption."""


def requested(command: Command, given: Mapping[str, Any]) -> Request:
    """The request that the arguments of a command's public function make.

    Args:
        given: the arguments by name; what is none of the command's options is the caller's business.

    Raises:
        UsageError: one cannot be meant, or two contradict each other.
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
    """What is meant where arguments leave it open, or follows from others."""
    found: dict[str, Any] = {}
    if said.get("reproducible"):
        found |= {"calibrate": False, "workers": 1}
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
    """Where the model runs, and which copies are made."""
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
    """The budget: the memory of a card, where none is given.

    Raises:
        UsageError: there is none, and what is to be split is what is too large for it.
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
    """Where a model runs, and which copies a plan may make."""

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
    """Decide what was not said (None).

    On a CPU with the profile of a CPU there are no copies, unless one of the options asks for some:
    `swap`, `resident` of "auto" or "host", `copies` that overlap. One file for any device has them: on
    GPUs they are real.

    Args:
        hardware: name of a shipped profile, or a TOML file.
        is_written: whether a file is.

    Raises:
        UsageError: a file is to be written, and `hardware` is a device with a memory of its own, which
            says nothing of what the file is for; or there is no such profile or device.
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
    """The device whose memory is the budget where none is given: one that a file is for, with a memory
    of its own and a profile that says how much. None where there is none."""
    if device is None or target_named(device).is_host:
        return None
    profile = load_hardware(hardware)
    return None if profile.is_host else profile


def set_aside(hardware: Hardware, reserve: str = AUTO_RESERVE) -> int:
    """Bytes of a device's memory that no plan may have.

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
    """(bytes of a device's memory that a plan may have, a phrase on how many and why).

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
    """The question that a profile leaves open, with its answers."""
    what = "is a GPU" if hardware in hardware_names() else "has a memory of its own"
    own = "" if hardware in hardware_names() else "; a CPU's profile says is_host = true"
    return (
        f"{hardware} {what} ({profile.title}), and a file is made for one device: add "
        f"{listed(f'--device {target.name}' for target in devices())} for a file that runs there, or "
        f"--device {HOST.name} for a file for {HOST.title}, planned with the times of {profile.name}{own}"
    )

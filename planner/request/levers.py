"""The levers of a request: actions allowed to a plan."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from planner.choices import CastSaved, Copies, Feeds, FuseMode, Recompute, Reside, SplitMode, Swap
from planner.errors import UsageError
from planner.files.writing import FileName
from planner.request.asking import BUDGET, LEVERS, WITH_COPIES, is_size, option
from planner.targets import titles
from planner.units import parse_micro_batch

if TYPE_CHECKING:
    from planner.disk import Disk

_lever = partial(option, group=LEVERS)
_patterns = partial(_lever, metavar="PATTERN", kind=list[str], argument=Sequence[str], take=tuple)


def _is_recompute(said: object) -> None:
    if said not in (True, False, "auto", "none", "only"):
        raise UsageError(f"--recompute is auto, none or only, not {said!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Levers:
    """Actions allowed to a plan besides running the operations in another order."""

    swap: Annotated[
        Swap,
        _lever(
            "--swap",
            "Copy tensors to the host and back: where it pays, never, or as the only lever [auto; "
            "none on a CPU, whose memory is the host's].",
            commands=(*WITH_COPIES, "problem"),
            unsaid=None,
        ),
    ] = "auto"
    recompute: Annotated[
        bool,
        _lever(
            "--recompute",
            "Compute tensors again instead of keeping them: where it pays, never, or as the only "
            "lever.",
            unsaid="auto",
            kind=Recompute,
            argument=bool | Recompute,
            more='True is "auto", False is "none".',
            check=_is_recompute,
            take=lambda said: said not in (False, "none"),
        ),
    ] = True
    resident: Annotated[
        Reside,
        _lever(
            "--resident",
            "Where parameters, optimizer state, other inputs, gradients and updated values live: "
            "on the device, on the host, or each where that costs less time [auto; device if "
            "--swap is none].",
            commands=WITH_COPIES,
            unsaid=None,
            more='On a CPU "auto" and "host" ask for copies (`planner.choices`).',
        ),
    ] = "device"
    feeds: Annotated[
        Feeds,
        _lever(
            "--feeds",
            "Where the caller has the inputs and wants the outputs; on the host, each is copied "
            "anyway.",
            commands=(*WITH_COPIES, "fit"),
        ),
    ] = "auto"
    copies: Annotated[
        Copies,
        _lever(
            "--copies",
            "Run copies between the operations, as ONNX Runtime does, or overlap them with "
            "operations by planner's native library "
            f"({titles(lambda row: row.overlap != 'never')}); auto: overlap them where that was "
            "shown to be safe [serial; overlapped with --disk].",
            commands=WITH_COPIES,
            unsaid=None,
        ),
    ] = "serial"
    disk: Annotated[
        "Disk | None",
        _lever(
            "--disk",
            "Swap to a file in this folder while operations run (CPU); the budget then limits all "
            "memory that is held.",
            kind=Path,
            metavar="DIR",
            argument=FileName,
            more="Copies are priced with the speeds measured in the folder (`planner.disk`).",
        ),
    ] = None
    split: Annotated[
        SplitMode,
        _lever(
            "--split",
            "Run large operations in chunks of rows: never, or where that saves time or no other "
            "plan fits.",
        ),
    ] = "none"
    micro_batch: Annotated[
        str,
        _lever(
            "--micro-batch",
            "Split a step into K runs on parts of the batch, and add their gradients up; auto: "
            "the K that takes the least time.",
            unsaid=1,
            metavar="auto|K",
            argument=int | str,
            more="The model needs a symbolic batch, bound with --dim. `result.plan.micro` says "
            "which totals are fed back from run to run.",
            check=lambda runs: parse_micro_batch(str(runs)),
            take=str,
        ),
    ] = "1"
    cast_saved: Annotated[
        CastSaved,
        _lever(
            "--cast-saved",
            "Lossy: store tensors saved for the backward pass as bfloat16 or float16, where it pays.",
            more="Gradients differ, and the verification says by how much.",
        ),
    ] = "none"
    fuse: Annotated[
        FuseMode,
        _lever(
            "--fuse",
            "Fuse elementwise operations in planner's native library "
            f"({titles(lambda row: row.fused is not None)}), where that saves time or nothing else "
            "fits: none, only those that keep every bit, or also those that change rounding.",
            more='"auto" differs in rounding (`planner.choices`).',
        ),
    ] = "none"
    pattern: Annotated[
        bool,
        _lever(
            "--no-pattern",
            "Let sessions with default options hold less memory: give the smallest input an "
            "optional type, which turns off ONNX Runtime's memory pattern.",
        ),
    ] = True
    include: Annotated[
        tuple[str, ...],
        _patterns(
            "--include",
            "Recompute and copy only these: 'layers.3.*', 'op:Softmax', 'category:activation'; "
            "may be repeated.",
        ),
    ] = ()
    exclude: Annotated[
        tuple[str, ...],
        _patterns(
            "--exclude",
            "Do not recompute or copy these; may be repeated.",
        ),
    ] = ()
    min_tensor: Annotated[
        str | None,
        _lever(
            "--min-tensor",
            "Copy no tensor that is smaller than this.",
            metavar="SIZE",
            more="None: planner decides which tensors are worth a copy.",
            check=is_size("--min-tensor", zero_ok=True),
        ),
    ] = None
    host_budget: Annotated[
        str | None,
        _lever(
            "--host-budget",
            "Limit on the bytes that are on the host at one time.",
            group=BUDGET,
            metavar="SIZE",
            more="It counts tensors that live there and tensors that are swapped out, but not "
            "those in a file.",
            check=is_size("--host-budget"),
        ),
    ] = None
    disk_budget: Annotated[
        str | None,
        _lever(
            "--disk-budget",
            "Limit on the bytes that swaps take in --disk [its free space less 1 GiB].",
            group=BUDGET,
            metavar="SIZE",
            check=is_size("--disk-budget"),
        ),
    ] = None

    @property
    def residence(self) -> Reside:
        """Where what outlives a step lives: where copies are forbidden, "auto" is the device."""
        return "device" if self.resident == "auto" and self.swap == "none" else self.resident

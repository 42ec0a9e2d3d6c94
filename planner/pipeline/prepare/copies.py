"""Whether copies are planned on the stream of the operations, or beside them.

ONNX Runtime runs everything of one device on one stream, copies included, unless the session is given
a partition of the nodes into streams (`planner.runtime.streams`). On streams of their own, copies are
not safe in it: a buffer that one stream made and another one reads goes back to the arena when its
last reader is *issued*, and the arena hands it to the first stream's next node at once.
`reports/overlap.md` has the places in ONNX Runtime that decide it, and what was run.

So a plan with copies beside the operations says what the step would take if that were mended. Its file
is a model like any other, and it runs on one stream.
"""

from __future__ import annotations

from typing import Literal

from planner.errors import UsageError

Copies = Literal["serial", "overlapped", "auto"]
COPIES: tuple[Copies, ...] = ("serial", "overlapped", "auto")

WHAT_IF = (
    "copies beside the operations are a what-if: ONNX Runtime runs this file's copies on the stream of "
    "the operations, and is not safe with copies on streams of their own"
)

SHARED = "host copies share the CPU's memory: nothing is saved on this machine; shows what a GPU would do"
"""What copies are worth where a file runs on the CPU."""

_SAFE_DEVICES: frozenset[str] = frozenset()
"""Devices whose copies have streams of their own and were shown to be safe there."""


def choose_copies(copies: str, swap: str, device: str) -> tuple[bool, str]:
    """(whether copies run beside the operations, why: a sentence for the plan's assumptions).

    "auto" overlaps on a device whose copies have been shown to be safe on streams of their own. There
    is none today.

    Args:
        copies: one of `COPIES`.
        swap: what `--swap` says.
        device: where the model is to run.

    Raises:
        UsageError: an unknown choice, or copies that overlap where none are allowed.
    """
    check_copies(copies, swap)
    if copies == "overlapped":
        return True, WHAT_IF
    if copies == "serial" or swap == "none":
        return False, ""
    if device in _SAFE_DEVICES:
        return True, f"copies run beside the operations: {device} has streams of their own for them"
    return False, (
        "copies are planned on the stream of the operations: on streams of their own they have not "
        f"been shown to be safe on {device}"
    )


def check_copies(copies: str, swap: str | None) -> None:
    """Raise UsageError where `copies` is none of `COPIES`, or overlaps copies that `swap` forbids."""
    if copies not in COPIES:
        raise UsageError(f"--copies is serial, overlapped or auto, not {copies!r}")
    if copies == "overlapped" and swap == "none":
        raise UsageError(
            "--copies overlapped needs copies, which --swap none forbids: leave out one of the two"
        )

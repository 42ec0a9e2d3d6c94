"""Source lines of the user's code that lead to an operator or an error in PyTorch."""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import nn

SKIPPED = frozenset(
    {"__torch_dispatch__", "__torch_function__", "_decide", "_keep", "_next", "_indices"}
)
"""Functions of this package that PyTorch calls from within the caller's code."""

_CALLED = (
    "assigning",
    "ctc",
    "known",
    "linalg",
    "logged",
    "losses",
    "numbers",
    "sampling",
    "stand_ins",
)
"""Modules of this package that replace functions of PyTorch."""


def line_of_user(frames: Sequence[traceback.FrameSummary]) -> str:
    """Return the innermost line of the module's or the loss's own source; "" if all are PyTorch's."""
    torch_root, own = str(Path(nn.__file__).parents[1]), str(Path(__file__).parent)
    for frame in reversed(frames):
        if frame.filename.startswith(own):
            if frame.name in SKIPPED or Path(frame.filename).stem in _CALLED:
                continue
            return ""  # frames further out belong to the exporter's caller
        if not frame.filename.startswith((torch_root, "<")):
            return f"{frame.filename}:{frame.lineno} in {frame.name}: {frame.line}"
    return ""


def lines_of(program: torch.export.ExportedProgram) -> dict[str, str]:
    """Return the source line of the first call of each operator in an exported program."""
    lines: dict[str, str] = {}
    for node in program.graph.nodes:
        entry = str(node.meta.get("stack_trace") or "").rpartition('File "')[2].splitlines()
        if node.op == "call_function" and entry:
            file, _, place = entry[0].partition('", line ')
            number, _, function = place.partition(", in ")
            text = f"{file}:{number} in {function}: {' '.join(entry[1:2]).strip()}"
            lines.setdefault(str(node.target), text)
    return lines

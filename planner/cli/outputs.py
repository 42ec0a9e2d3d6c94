"""Names of the files that a command reads and writes, checked before any work is done.

`-o` names the rewritten model, or a folder for it; the plan and the report go beside it. Without `-o`
they go to the working folder, named after the model.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from planner.errors import UsageError
from planner.files.writing import check_writable
from planner.request.asking import is_file


@dataclass(frozen=True, slots=True, kw_only=True)
class Outputs:
    """The three files of `planner optimize`."""

    model: Path
    plan: Path
    report: Path


def name_outputs(
    model: Path, *, output: Path | None, plan: Path | None = None, report: Path | None = None
) -> Outputs:
    """Return the paths of the outputs for `model`, given those that the user named."""
    if output is not None and not os.path.isdir(output):
        rewritten, stem = output, output.name.removesuffix(".onnx").removesuffix(".planned")
    else:
        stem = model.name.removesuffix(".onnx")
        rewritten = (output or Path()) / f"{stem}.planned.onnx"
    folder = rewritten.parent
    return Outputs(
        model=rewritten,
        plan=plan or folder / f"{stem}.plan.json",
        report=report or folder / f"{stem}.report.html",
    )


def check_outputs(*paths: Path, inputs: tuple[Path | None, ...] = (), force: bool) -> None:
    """Raise UsageError unless every output can be written.

    An output must not be an input, exist (without `force`), or be named twice.
    """
    seen: set[str] = set()
    sources = {os.path.realpath(path) for path in inputs if path is not None}
    for path in paths:
        real = os.path.realpath(path)
        if real in sources:
            raise UsageError(f"output {path} is an input; choose another name with -o/--output")
        if real in seen:
            raise UsageError(f"output {path} is named twice")
        check_writable(path, force=force)
        seen.add(real)


def check_input(path: Path | None, *, what: str) -> None:
    """Raise UsageError where `path` is given and is not a regular file."""
    if path is not None:
        is_file(what)(path)

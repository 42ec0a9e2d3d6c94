"""The output files of a plan."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from planner.errors import UsageError
from planner.files.writing import check_writable
from planner.lower.rewrite import Rewritten
from planner.onnxio.save import write_model


@dataclass(frozen=True, slots=True, kw_only=True)
class Files:
    """Destinations of the outputs of `optimize`; None leaves one out.

    Attributes:
        model: the rewritten model.
        plan: the plan (JSON).
        report: the report (one HTML file).
        trace: a trace of the plan for Perfetto.
    """

    model: Path | None = None
    plan: Path | None = None
    report: Path | None = None
    trace: Path | None = None

    def check(self, model: Path, *, force: bool) -> None:
        """Raise UsageError if a file cannot be written, or is the original `model` itself.

        Args:
            force: existing files may be overwritten.
        """
        for path in (self.model, self.plan, self.report, self.trace):
            if path is None:
                continue
            if os.path.exists(path) and model.exists() and path.samefile(model):
                raise UsageError(f"output {path} is the model itself; name another file")
            check_writable(path, force=force)


def save_rewritten(model: Path, rewritten: Rewritten | None, output: Path) -> None:
    """Write the rewritten model; for None, a copy of the original `model`."""
    if rewritten is not None:
        write_model(rewritten.model, output)
    else:
        shutil.copyfile(model, output)

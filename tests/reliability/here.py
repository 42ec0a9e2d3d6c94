"""A misuse in this process: quicker than one of its own, for cases that can neither hang nor take
much memory."""

from __future__ import annotations

import contextlib
import io
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.reliability.case import Case
from tests.reliability.judge import Ending, faults, files_in


def run_here(case: Case, folder: Path) -> tuple[Ending, list[str]]:
    """How the case ended in `folder`, an empty one, and what is not as it should be."""
    from planner.cli.main import main

    work, scratch = folder / "case", folder / "scratch"
    work.mkdir()
    scratch.mkdir()
    case.build(work)
    before = files_in(work)
    out, err = io.StringIO(), io.StringIO()
    with (
        contextlib.chdir(work),
        _temporary_folder(scratch),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        code = main(list(case.arguments))
    ending = Ending(code=code, out=out.getvalue(), err=err.getvalue())
    return ending, faults(case, ending, before, files_in(work), scratch)


@contextlib.contextmanager
def _temporary_folder(folder: Path) -> Iterator[None]:
    before, kept = tempfile.tempdir, os.environ.get("TMPDIR")
    tempfile.tempdir = os.environ["TMPDIR"] = str(folder)
    try:
        yield
    finally:
        tempfile.tempdir = before
        os.environ.pop("TMPDIR")
        if kept is not None:
            os.environ["TMPDIR"] = kept

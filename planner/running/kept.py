"""Plans that `planner run` makes once and keeps, under a key of all that they depend on."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from planner import __version__
from planner.cost.measured import times_key
from planner.errors import InfeasibleBudgetError, ModelError, PlannerError, UsageError
from planner.files.keeping import cache_folder
from planner.files.structuring import parse_json, read_json
from planner.files.temporary import temporary_file
from planner.processes.children import run_child
from planner.running.outcome import Job, Outcome, Status
from planner.targets import TARGETS

_LASTING = (ModelError.exit_code, InfeasibleBudgetError.exit_code)
"""Exit codes of refusals that would be the same the next time."""

_MOST_KEPT = 32
_OUTCOME = "outcome.json"
_ROOT = Path(__file__).parents[2]


def planned(job: Job, on_start: Callable[[], None]) -> Outcome:
    """Return the plan of a job: kept from an earlier start, or made now by one process at a time.

    Args:
        job: the job; this function sets its folder.
        on_start: called before a plan is made.

    Raises:
        UsageError: the model cannot be read, or the cache folder cannot be used.
    """
    runs = cache_folder() / "runs"
    runs.mkdir(mode=0o700, exist_ok=True)
    folder = runs / _key(job)
    with _alone(runs / f"{folder.name}.lock"):
        found = _kept(folder, job)
        if found is not None:
            os.utime(folder / _OUTCOME)
            return replace(found, is_kept=True)
        on_start()
        folder.mkdir(mode=0o700, exist_ok=True)
        outcome = _made(replace(job, folder=str(folder)))
        if outcome.status is not Status.REFUSED or outcome.code in _LASTING:
            with temporary_file(folder) as path:
                path.write_text(json.dumps(asdict(outcome)), encoding="utf-8")
                os.replace(path, folder / _OUTCOME)
            _forget_old(runs)
    return outcome


def _key(job: Job) -> str:
    """Return a digest of all that a plan depends on."""
    return times_key(
        {
            **asdict(job),
            "model": _digest(job.model),
            "plan": _digest(job.plan) if job.plan else "",
            "folder": "",
            "planner": __version__,
            "runtimes": _runtimes(),
            "calibrate": os.environ.get("PLANNER_CALIBRATE", ""),
        }
    )


def _digest(path: str) -> str:
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from None


def _runtimes() -> list[str]:
    """Return the installed builds of ONNX Runtime, whose optimizers plans depend on."""
    found: list[str] = []
    for name in (
        "onnxruntime",
        "onnxruntime-gpu",
        "onnxruntime-training",
        "onnxruntime-training-cpu",
        *(target.distribution for target in TARGETS.values() if target.distribution),
    ):
        with contextlib.suppress(PackageNotFoundError):
            found.append(f"{name} {version(name)}")
    return found


def _kept(folder: Path, job: Job) -> Outcome | None:
    """Return the kept outcome; None where there is none that can be read and that holds for this very
    model."""
    path = folder / _OUTCOME
    if not path.exists():
        return None
    what = "an outcome of planner run"
    try:
        found = read_json(path, Outcome, what=what)
    except PlannerError:
        return None
    return found if found.holds_for(job.model) else None


def _made(job: Job) -> Outcome:
    """Plan in a separate process, and return the outcome."""
    paths = [str(_ROOT), os.environ.get("PYTHONPATH", "")]
    done = run_child(
        [sys.executable, "-P", "-m", "planner.running.planning", json.dumps(asdict(job))],
        environment={"PYTHONPATH": os.pathsep.join(filter(None, paths))},
    )
    lines = done.stdout.splitlines()
    try:
        return parse_json(lines[-1], Outcome, where="planning", what="an outcome")
    except (IndexError, PlannerError):
        said = (done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1]
        return Outcome(status=Status.REFUSED, reason=f"planning failed: {said}", code=1)


def _forget_old(runs: Path) -> None:
    """Remove the plans that were used least recently."""
    found = sorted(runs.glob(f"*/{_OUTCOME}"), key=lambda p: p.stat().st_mtime)
    for outcome in found[:-_MOST_KEPT]:
        shutil.rmtree(outcome.parent, ignore_errors=True)


@contextlib.contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Hold a lock: several processes may start on one model."""
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield

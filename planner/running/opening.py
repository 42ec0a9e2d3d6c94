"""Open the sessions of a script under `planner run`: choose each one's file and options."""

from __future__ import annotations

import hashlib
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from weakref import WeakSet

from planner.errors import PlannerError, UsageError
from planner.files.temporary import temporary_folder
from planner.running.asked import Asked, Merged, merged
from planner.running.outcome import Job, Outcome, Status
from planner.runtime.capture import with_capture
from planner.runtime.opened import (
    Needs,
    Setting,
    metadata_of,
    needs_of,
    register,
)
from planner.runtime.swapping import USES_ARENA, put_disk, put_pool, register_library
from planner.targets.backend import backend_of
from planner.targets.keys import TARGET_KEY
from planner.units import format_bytes, parse_bytes, parse_percent

_NO_POOL = (
    "it opens on another device or on one that its options name, for a training module, in an arena of "
    "the script's own, or with launches that are replayed"
)
_USES_ARENA = Setting(name=USES_ARENA, needed="1", default="0")


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The options of `planner run`.

    Attributes:
        budget: the budget for models that planner has not written; None leaves these alone.
        plans: plan files, by the digest of the model that each belongs to.
        device: the device to plan for; None for the one that a session opens on.
        dims: sizes of the models' open dims.
        verify: whether plans are verified.
        time_limit_s: time limit of the search for a plan, in seconds.
        strict: whether an unmet need is an error rather than a line on stderr.
        explain: whether to print what was done to each session.
        pool: size of the pool for sessions of planner's files, or "plan" for their plan's.
        disk: the folder for swaps of files that were planned for a disk; new plans swap there too.
        graph_capture: whether sessions replay the launches of a step.
    """

    budget: str | None = None
    plans: Mapping[str, Path] = field(default_factory=dict)
    device: str | None = None
    dims: Mapping[str, int] = field(default_factory=dict)
    verify: bool = True
    time_limit_s: float = 60.0
    strict: bool = False
    explain: bool = False
    pool: str | None = None
    disk: Path | None = None
    graph_capture: bool = False


class Opener:
    """Opens sessions, one at a time.

    The script's own options object is changed only while its session is created, and an arena or a
    pool is registered for the whole process.

    Args:
        wanted: the options of `planner run`.
        say: prints a line.
    """

    _lock = threading.RLock()  # of all openers: each `planner.open_session` makes one

    def __init__(self, wanted: Wanted, say: Callable[[str], None]) -> None:
        self._wanted, self._say = wanted, say
        self._ours: WeakSet[Any] = WeakSet()  # options that use an arena of planner's

    @contextmanager
    def opening(self, asked: Asked) -> Iterator[Asked]:
        """Yield the arguments from which to create the session within the block.

        Raises:
            UsageError: the file was planned for another kind of processor, or has metadata that planner
                does not write; with `strict`, a need is not met.
        """
        with self._lock:
            planned = self._planned(self._with_arena(asked))
            pool = self._wanted.pool
            if not is_by_planner(planned.model):
                if pool is not None:
                    self._object(f"{asked.name}: not written by planner; opened without the pool")
                yield planned
                return
            needs = needs_of(planned.model)
            needs.check_here()
            self._compare_budget(asked, needs)
            if pool is not None:
                needs = needs.in_pool(pool)
            if self._wanted.graph_capture:
                needs = with_capture(needs, planned.model)
            found = merged(planned, needs)
            if self._wanted.graph_capture and not found.on_target:
                raise UsageError("; ".join(found.against))
            if pool is not None and found.pool is None:
                self._object(f"{asked.name}: opened without the pool of {pool}: {_NO_POOL}")
            said = ", ".join(found.said) or "nothing"
            self._explain(f"{asked.name}: {_plan_of(needs)}; set {said}")
            for line in found.against:
                self._object(f"{asked.name}: {line}")
            with self._set(found, needs) as ready:
                yield ready

    @contextmanager
    def _set(self, found: Merged, needs: Needs) -> Iterator[Asked]:
        """Set the session's options while it is created, and restore them afterwards.

        Yields:
            the request with these options, and whether they cap the arena.
        """
        import onnxruntime as ort

        given = found.asked.options
        options = ort.SessionOptions() if given is None else given
        if found.adds_plugin:
            backend_of(needs.target).add_to(options, needs.target.options)
        inside = {} if found.pool is None else put_pool(options, found.pool, needs.target)
        pooled = self._load_library(options, found, needs)
        for setting in found.settings:
            setting.put(options, setting.needed)
        try:
            capped = found.arena is not None and self._register(options, found, needs)
            yield replace(
                found.asked.with_options(needs.target.provider, inside),
                options=options,
                is_capped=(capped or pooled) and not needs.target.own_memory,
            )
        finally:
            # a training module creates its optimizer's session from them later
            if given is not None or found.asked.module_device:
                for setting in found.settings:
                    setting.put(options, setting.default)
                if pooled:  # the library set the entry
                    _put_back(options)
                elif found.arena is not None:
                    self._ours.add(options)

    def _load_library(self, options: Any, found: Merged, needs: Needs) -> bool:
        """Make the session load planner's library where the file needs it or has a pool.

        Return whether the pool serves the session.
        """
        if needs.disk_bytes is not None and found.on_target:
            remark = put_disk(options, needs.disk_bytes, self._wanted.disk)
            if remark:
                self._object(f"{found.asked.name}: {remark}")
        if not needs.library and found.pool is None:
            return False
        try:
            with _unsaid():
                register_library(options)
        except UsageError as error:
            if needs.library or self._wanted.pool is not None:
                raise
            self._object(f"{found.asked.name}: opened without the plan's pool: {error}")
            return False
        return found.pool is not None

    def _with_arena(self, asked: Asked) -> Asked:
        """Note whether the script has an arena of its own.

        ONNX Runtime cannot remove an entry: planner's entry on the script's options is overwritten where
        they are used again.
        """
        options = asked.options
        if options is None or _USES_ARENA.of(options) != "1":
            return asked
        if options not in self._ours:
            return replace(asked, has_arena=True)
        self._ours.discard(options)
        _put_back(options)
        return asked

    def _register(self, options: Any, found: Merged, needs: Needs) -> bool:
        """Register the file's arena, and return whether that succeeded."""
        assert found.arena is not None
        try:
            register(options, found.arena, needs.target)
        except UsageError as error:
            self._object(f"{found.asked.name}: the plan's cap is not set: {error}")
            return False
        return True

    def _compare_budget(self, asked: Asked, needs: Needs) -> None:
        budget = self._wanted.budget
        if budget is None or needs.budget_bytes is None or parse_percent(budget) is not None:
            return
        if needs.budget_bytes > parse_bytes(budget):
            self._object(
                f"{asked.name}: its plan is for {format_bytes(needs.budget_bytes)}, more than --budget "
                f"{budget}: plan its original again"
            )

    def _planned(self, asked: Asked) -> Asked:
        """Return the session, of the rewritten model where a plan or a budget exists for it."""
        plan = self._plan_file(asked.model)
        wants = plan is not None or self._wanted.budget is not None
        if not wants or not _is_original(asked.model):
            if not is_by_planner(asked.model):
                self._explain(f"{asked.name}: not written by planner; opened as the script asks")
            return asked
        device = self._wanted.device or asked.device()
        if device is None:
            self._object(
                f"{asked.name}: not planned, as its options do not say on which device it opens; "
                "give --device"
            )
            return asked
        try:
            outcome = self._outcome(asked, device, plan)
        except (PlannerError, OSError) as error:  # no folder to keep it in, a full disk
            outcome = Outcome(status=Status.REFUSED, reason=str(error))
        self._tell(asked, outcome)
        return replace(asked, model=outcome.model) if outcome.status is Status.PLANNED else asked

    def _plan_file(self, model: Any) -> Path | None:
        """Return the plan file that belongs to a model; None where there is none."""
        plans = self._wanted.plans
        if not plans:
            return None
        try:
            data = model if isinstance(model, bytes) else Path(model).read_bytes()
        except (OSError, TypeError):
            return None
        return plans.get(hashlib.sha256(data).hexdigest())

    def _outcome(self, asked: Asked, device: str, plan: Path | None) -> Outcome:
        """Plan a session's model, now or in an earlier start, and return the outcome."""
        from planner.running.kept import planned

        wanted, options = self._wanted, asked.options

        def on_start() -> None:
            if wanted.explain or sys.stderr.isatty():
                how = f"for {wanted.budget} on {device}" if plan is None else f"by {plan}"
                self._say(f"{asked.name}: planning {how}, once")

        job = Job(
            model="",
            folder="",
            budget=str(wanted.budget),
            dims=wanted.dims,
            device=device,
            order="priority" if _is(options, "execution_order", "PRIORITY_BASED") else "default",
            ort_optimize=not _is(options, "graph_optimization_level", "ORT_DISABLE_ALL"),
            time_limit_s=wanted.time_limit_s,
            verify=wanted.verify,
            plan="" if plan is None else os.path.abspath(plan),
            disk="" if wanted.disk is None else str(wanted.disk.absolute()),
        )
        if not isinstance(asked.model, bytes):
            return planned(replace(job, model=os.path.abspath(asked.model)), on_start)
        with temporary_folder() as folder:
            path = folder / "model.onnx"
            path.write_bytes(asked.model)
            return planned(replace(job, model=str(path)), on_start)

    def _tell(self, asked: Asked, outcome: Outcome) -> None:
        when = "kept from an earlier start" if outcome.is_kept else "planned now"
        peak = format_bytes(outcome.before_bytes)
        if outcome.status is Status.REFUSED:
            self._object(f"{asked.name}: opened as it is, not planned: {outcome.reason}")
        elif outcome.status is Status.UNCHANGED:
            budget = format_bytes(outcome.budget_bytes)
            self._explain(
                f"{asked.name}: its peak of {peak} is within {budget}: opened as it is ({when})"
            )
        else:
            self._explain(
                f"{asked.name}: peak {peak} -> {format_bytes(outcome.after_bytes)}, {when}: opened as "
                f"{outcome.model}"
            )

    def _explain(self, line: str) -> None:
        if self._wanted.explain:
            self._say(line)

    def _object(self, line: str) -> None:
        """Report an unmet need.

        Raises:
            UsageError: with `strict`, instead.
        """
        if self._wanted.strict:
            raise UsageError(line)
        self._say(line)


@contextmanager
def _unsaid() -> Iterator[None]:
    """Hide ONNX Runtime's messages on stderr until the block ends.

    It warns of each entry that is overwritten, and an entry of the script's options cannot be changed
    otherwise.
    """
    sys.stderr.flush()
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


def _put_back(options: Any) -> None:
    """Make later sessions with the script's options use arenas of their own."""
    with _unsaid():
        _USES_ARENA.put(options, _USES_ARENA.default)


def _plan_of(needs: Needs) -> str:
    budget = f", budget {format_bytes(needs.budget_bytes)}" if needs.budget_bytes else ""
    return f"planned for {needs.target.title}{budget}"


def _metadata(model: Any) -> Mapping[str, str] | None:
    """Return a model's metadata; None where it is no model, which ONNX Runtime reports."""
    try:
        return metadata_of(model if isinstance(model, bytes) else Path(model))
    except (UsageError, TypeError):
        return None


def is_by_planner(model: Any) -> bool:
    """Tell by its metadata whether planner wrote a model."""
    return TARGET_KEY in (_metadata(model) or {})


def _is_original(model: Any) -> bool:
    """Tell whether it is a model that planner did not write."""
    found = _metadata(model)
    return found is not None and TARGET_KEY not in found


def _is(options: Any, name: str, value: str) -> bool:
    """Tell whether an option of the script has the value of that name."""
    return options is not None and str(getattr(options, name)).endswith(f".{value}")

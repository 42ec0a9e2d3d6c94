"""Run a model in a process of its own, opened by the one line with which a script opens it.

    default      onnxruntime.InferenceSession(path)
    recommended  planner.open_session(path)
    capped       in a pool of a given size (`planner.runtime.judge.cap.run`)

Nothing else is set in the first two: no level, no threads, no profile. A file with copies beside the
operations gets the library that it needs (`planner.runtime.swapping`). The process reports digests of
its results, and its growth: the high-water mark of its resident set over each run (`VmHWM` in
/proc/PID/status, reset before the first run by /proc/PID/clear_refs; proc(5)), less the resident bytes
before, session and inputs included. `top` counts the same way: the figure includes the arena, Python's
own copy of the results, and all that a run leaves behind.
"""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import sys
import uuid
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import numpy.typing as npt

from planner.files.temporary import temporary_folder
from planner.processes.children import run_child
from planner.results.verification import DefaultBits, SessionCheck
from planner.runtime.memory.memcheck import NO_ROOM
from planner.runtime.options import Memory
from planner.runtime.timing import available_bytes
from planner.units import format_bytes, some_of

_TIMEOUT_S = 3600.0
_SHOWN = 3

_REFUSED = re.compile(
    r"(\d+) bytes were asked for; the pool has \d+, of which \d+ are in use \((\d+) free"
)

_TIMES_LIVE = 4
"""The bytes that a session of default options may hold, in live bytes: regions double, and the memory
pattern has a block of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedInputs:
    """Inputs of a run in files, for any number of processes.

    Attributes:
        folder: the folder of these files, and of others for these processes.
        files: file names in the folder, by input.
    """

    folder: Path
    files: Mapping[str, str]


@contextlib.contextmanager
def saved(inputs: Mapping[str, npt.NDArray[Any]]) -> Iterator[SavedInputs]:
    """Yield the inputs in files that exist until the block ends."""
    with temporary_folder() as folder:
        files = {name: f"{index}.npy" for index, name in enumerate(inputs)}
        for name, array in inputs.items():
            np.save(folder / files[name], array)
        yield SavedInputs(folder=folder, files=files)


@dataclass(frozen=True, slots=True, kw_only=True)
class Alone:
    """A process's report on its runs.

    Attributes:
        digests: digest of each result by name, for each run; inputs that are written over included.
        grown_bytes: the most that the process had grown, for each run.
        results_bytes: bytes of the arrays that a run returns, which the process holds beside the arena.
        held_bytes: peak of its pool's pages, in bytes; None where it has no pool.
        spilled_bytes: peak of the bytes outside of a pool that spills.
        failure: why it did not run; "" where it did.
        has_room: whether its pool had room for it.
    """

    digests: tuple[Mapping[str, str], ...] = ()
    grown_bytes: tuple[int, ...] = ()
    results_bytes: int = 0
    held_bytes: int | None = None
    spilled_bytes: int = 0
    failure: str = ""
    has_room: bool = True

    def check(self, model: str, options: Memory) -> SessionCheck:
        """Return the part that a verification keeps."""
        return SessionCheck(
            model=model,
            options=options,
            grown_bytes=self.grown_bytes,
            results_bytes=self.results_bytes,
            held_bytes=self.held_bytes,
            failure=self.failure if self.has_room else f"{NO_ROOM}: {self.failure}",
            has_room=self.has_room,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """A process to start.

    Attributes:
        path: the model's path.
        options: the line that opens it, or "capped".
        written: inputs that a run writes over, which count as results.
        runs: number of successive runs; the results of one are kept until the next has some, as in a
            loop; those of a capped one are dropped.
        how: of a capped one, its pool and the options of its session.
    """

    path: Path
    options: Memory | Literal["capped"]
    written: Sequence[str] = field(default=())
    runs: int = 3
    how: Mapping[str, Any] = field(default_factory=dict)

    def run(self, inputs: SavedInputs) -> Alone:
        """Run the process to its end."""
        request = {
            "model": str(self.path.resolve()),
            "options": self.options,
            "inputs": dict(inputs.files),
            "written": list(self.written),
            "runs": self.runs,
            **self.how,
        }
        path = inputs.folder / f"{uuid.uuid4().hex}.json"
        path.write_text(json.dumps(request))
        command = [sys.executable, "-m", "planner.running.alone_worker", str(path)]
        try:
            done = run_child(command, timeout_s=_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            return Alone(failure=f"the process did not finish within {_TIMEOUT_S:.0f} s")
        if done.returncode:
            tail = (done.stderr.strip().splitlines() or ["no message"])[-1]
            return Alone(failure=f"the process ended with status {done.returncode}: {tail}")
        answer = json.loads(done.stdout.strip().splitlines()[-1])
        if "failure" in answer:
            said = answer["failure"]
            return Alone(
                failure=_shortened(said) or "no message", has_room=_REFUSED.search(said) is None
            )
        return Alone(
            digests=tuple(answer["digests"]),
            grown_bytes=tuple(answer["grown_bytes"]),
            results_bytes=answer["results_bytes"],
            held_bytes=answer["held_bytes"],
            spilled_bytes=answer["spilled_bytes"],
        )


def _shortened(message: str) -> str:
    """Return ONNX Runtime's message in one line; for a pool's refusal, the node, the request and the
    free bytes."""
    found = _REFUSED.search(message)
    if found is None:
        return message.strip().splitlines()[0] if message.strip() else ""
    node = re.search(r"running (\S+) node\. Name:'([^']*)'", message)
    where = f"at {node[1]} node {node[2]!r}: " if node else ""
    wanted, free = int(found[1]), int(found[2])
    return f"{where}{format_bytes(wanted)} requested, {format_bytes(free)} free in the pool"


def compared_bits(original: Alone, rewritten: Alone, recommended: Alone) -> DefaultBits | None:
    """Compare the bits of both files' first runs; return None where one did not run.

    Args:
        original, rewritten: runs under default options.
        recommended: runs of the rewritten file, as `planner.open_session` opens it.
    """
    if original.failure or rewritten.failure:
        return None
    differ = _apart(original, rewritten)
    # the original differs from itself where threads add in any order, or random numbers are drawn
    unstable = tuple(name for name in differ if name in _apart(original, original, run=-1))
    others = None
    if not recommended.failure:
        others = tuple(n for n in _apart(original, recommended) if n not in unstable)
    return DefaultBits(
        compared=len(original.digests[0]),
        differ=tuple(name for name in differ if name not in unstable),
        unstable=unstable,
        recommended_differ=others,
    )


def _apart(one: Alone, other: Alone, run: int = 0) -> list[str]:
    """Return the names of results whose bits differ between one's first run and a run of the other."""
    mine, theirs = one.digests[0], other.digests[run]
    return [name for name in mine if mine[name] != theirs.get(name)]


def default_bits_note(bits: DefaultBits) -> str:
    """Return a note on results that have other bits in sessions of default options; "" for none."""
    if not bits.differ:
        return ""
    names = some_of([repr(name) for name in bits.differ], _SHOWN)
    said = f"last bits differ under default options: outputs {names}"
    if bits.recommended_differ is None:
        return said
    if not bits.recommended_differ:
        return f"{said}; identical with planner.open_session(file)"
    return f"{said}; {len(bits.recommended_differ)} differ with planner.open_session(file), too"


def judged_alone(
    bits: DefaultBits | None, sessions: Sequence[SessionCheck], *, strict: bool
) -> tuple[list[str], list[str]]:
    """Return (failures, notes) on models that do not run as a script opens them, and on results with
    other bits.

    Other bits are failures where `strict` is set, and notes otherwise.
    """
    failures = [
        check.failure
        if not check.has_room
        else f"{check.opened} does not run the {check.model} model: {check.failure}"
        for check in sessions
        if check.failure
    ]
    said = "" if bits is None else default_bits_note(bits)
    notes = [said] if said else []
    return ([*failures, *notes], []) if strict else (failures, notes)


def has_room_beside(live_bytes: int) -> bool:
    """Tell whether a model may run in a process of its own while another session of it runs.

    Args:
        live_bytes: live peak of the larger of both models.
    """
    available = available_bytes()
    return available is None or 2 * _TIMES_LIVE * live_bytes <= available


_WAYS: tuple[tuple[str, Memory], ...] = (
    ("original", "default"),
    ("rewritten", "default"),
    ("rewritten", "recommended"),
)


class BothAlone:
    """Both files as a script opens them, in one process after another, from the start of the block.

    Args:
        paths: paths of "original" and "rewritten".
        written: inputs that a run writes over.
        beside: whether they run beside other work; otherwise they run when `found` is called.
    """

    def __init__(
        self,
        paths: Mapping[str, Path],
        inputs: Mapping[str, npt.NDArray[Any]],
        *,
        written: Sequence[str] = (),
        beside: bool,
    ) -> None:
        self._stack = contextlib.ExitStack()
        self._inputs, self._beside = inputs, beside
        self._processes: dict[tuple[str, Memory], Process] = {
            (model, options): Process(path=paths[model], options=options, written=written)
            for model, options in _WAYS
        }
        self._running: dict[tuple[str, Memory], Future[Alone]] = {}

    def __enter__(self) -> Self:
        if self._beside:
            self._begin()
        return self

    def __exit__(self, *error: object) -> None:
        for future in self._running.values():
            future.cancel()
        self._stack.close()

    def _begin(self) -> None:
        inputs = self._stack.enter_context(saved(self._inputs))
        pool = self._stack.enter_context(ThreadPoolExecutor(1))
        for way, process in self._processes.items():
            self._running[way] = pool.submit(process.run, inputs)

    def found(self) -> tuple[DefaultBits | None, tuple[SessionCheck, ...]]:
        """Wait for the processes; return the compared results and each process's outcome."""
        if not self._running:
            self._begin()
        found = {way: future.result() for way, future in self._running.items()}
        bits = compared_bits(
            found["original", "default"],
            found["rewritten", "default"],
            found["rewritten", "recommended"],
        )
        return bits, tuple(alone.check(*way) for way, alone in found.items())

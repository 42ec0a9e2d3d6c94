"""Requests to a device; each one starts a process of its own (`planner.runtime.device.worker`)."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from planner import errors
from planner.cost.measured import MeasuredTimes
from planner.errors import ModelError
from planner.files.temporary import temporary_folder
from planner.runtime.device.op_times import times_of
from planner.runtime.options import DEFAULT, Level, Opening, Order
from planner.runtime.profile import NodeEvent
from planner.targets import Target
from planner.targets.backend import backend_of

Array = npt.NDArray[Any]
_TIMEOUT_S = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceRun:
    """The results of a model's runs on the device.

    Attributes:
        outputs: outputs of each run that was kept, by name.
        events: events of the first run, in the profile's order; empty under a cap.
        peak_bytes: peak of the device in each run, initializers and feeds included; empty where nothing
            counts it.
    """

    outputs: tuple[Mapping[str, Array], ...]
    events: tuple[NodeEvent, ...]
    peak_bytes: tuple[int, ...]


def optimize(
    target: Target, model: Path, output: Path, *, level: Level, external: bool = False
) -> dict[str, bool]:
    """Save `model` as the target's optimizers leave it; tell for each node whether it is on the
    device.

    The copies that ONNX Runtime adds at the end are left out.

    Raises:
        UsageError: the device is not available.
        ModelError: the model does not load on it.
    """
    answer = _ask(
        target,
        {
            "do": "optimize",
            "model": str(Path(model).resolve()),
            "target": str(Path(output).resolve()),
            "level": level,
            "external": external,
        },
    )
    return {name: provider == target.provider for name, provider in answer["placed"].items()}


def run(
    target: Target,
    model: Path,
    inputs: Mapping[str, Array],
    opening: Opening = DEFAULT,
    *,
    keep: int = 1,
    cap_bytes: int = 0,
) -> DeviceRun:
    """Run a model twice on the device, with a profile; or once under a cap, without one.

    Args:
        opening: level, order and memory of the session; "recommended" turns memory pattern and reuse off.
        keep: number of runs, from the first, whose outputs are returned.
        cap_bytes: cap on the device's memory; 0 for none.

    Raises:
        UsageError: the device is not available.
        ModelError: the model does not load or run, or needs more than the cap.
    """
    asked = {
        "runs": 1 if cap_bytes else 2,
        "keep": keep,
        "cap_bytes": cap_bytes,
        "level": opening.level,
        "order": opening.order,
        "memory": opening.memory,
    }
    with _asked(target, "run", model, inputs, asked) as (answer, folder):
        outputs = [_outputs(folder, answer["names"], number) for number in range(keep)]
    return DeviceRun(
        outputs=tuple(outputs),
        events=tuple(NodeEvent(**event) for event in answer["events"]),
        peak_bytes=tuple(answer["peak_bytes"]),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CappedRun:
    """The outcome of a model in capped arenas.

    Attributes:
        passed: index of the first arena in which it ran; None where it ran in none.
        messages: why it failed in each arena before that.
        outputs: outputs of the first run in the arena that sufficed.
    """

    passed: int | None
    messages: tuple[str, ...]
    outputs: Mapping[str, Array]


def capped(
    target: Target,
    model: Path,
    inputs: Mapping[str, Array],
    arenas: Sequence[tuple[int, int]],
    *,
    order: Order = "default",
    level: Level = "all",
) -> CappedRun:
    """Run a model twice in a row in arenas of these sizes, until it runs in one.

    Args:
        arenas: pairs of (bytes of the first region, most bytes of all).

    Raises:
        UsageError: the device is not available.
        ModelError: the model does not load on it.
    """
    asked = {"arenas": [list(each) for each in arenas], "order": order, "level": level}
    with _asked(target, "capped", model, inputs, asked) as (answer, folder):
        passed: int | None = answer["passed"]
        outputs = {} if passed is None else _outputs(folder, answer["names"], 0)
    return CappedRun(passed=passed, messages=tuple(answer["messages"]), outputs=outputs)


def op_times(
    target: Target, model: Path, inputs: Mapping[str, Array], *, level: Level
) -> MeasuredTimes:
    """Measure the times of a model's nodes, of issuing a node and of copies, in two processes.

    Raises:
        UsageError: the device is not available.
        ModelError: the model does not load or run on it.
    """
    with _asked(target, "events", model, inputs, {"level": level}) as (answer, folder):
        issued = _ask(target, {"do": "issue", "folder": str(folder)})
    return times_of(answer, issued)


def time_in_turns(
    target: Target,
    pair: tuple[Path, Path],
    inputs: Mapping[str, Array],
    *,
    runs: int,
    order: Order = "default",
    bound: bool = False,
) -> tuple[list[float], list[float]]:
    """Return the seconds of each run of the original and of the rewritten model.

    Args:
        pair: the original model and the rewritten one.
        bound: whether inputs and outputs lie where each session reads and writes them, not on the host.
    """
    with temporary_folder() as folder:
        answer = _ask(
            target,
            {
                "do": "time",
                "models": [str(Path(p).resolve()) for p in pair],
                "orders": ["default", order],
                "inputs": _store(folder, inputs),
                "runs": runs,
                "bound": bound,
            },
        )
    return answer["original_s"], answer["rewritten_s"]


@contextmanager
def _asked(
    target: Target,
    what: str,
    model: Path,
    inputs: Mapping[str, Array],
    more: Mapping[str, Any],
) -> Iterator[tuple[dict[str, Any], Path]]:
    """Ask for work on a fed model; yield the answer, and the folder with the worker's files."""
    with temporary_folder() as folder:
        request = {
            "do": what,
            "model": str(Path(model).resolve()),
            "inputs": _store(folder, inputs),
            "folder": str(folder),
            **more,
        }
        yield _ask(target, request), folder


def _outputs(folder: Path, names: Sequence[str], number: int) -> dict[str, Array]:
    """Read the outputs of a run that a worker saved."""
    return {
        output: np.load(folder / f"run{number}_{i}.npy", allow_pickle=False)
        for i, output in enumerate(names)
    }


def _store(folder: Path, inputs: Mapping[str, Array]) -> dict[str, str]:
    """Save each input to a file, and return the files by name. No name of the user's becomes a file
    name."""
    files: dict[str, str] = {}
    for number, (name, array) in enumerate(inputs.items()):
        files[name] = str(folder / f"input{number}.npy")
        np.save(files[name], array, allow_pickle=False)
    return files


def _ask(target: Target, request: dict[str, Any]) -> dict[str, Any]:
    with temporary_folder() as folder:
        file, answer = folder / "request.json", folder / "answer.json"
        request = {
            "device": target.name,
            "settings": dict(target.options),
            "answer": str(answer),
            **request,
        }
        file.write_text(json.dumps(request), encoding="utf-8")
        command = [sys.executable, "-m", "planner.runtime.device.worker", str(file)]
        try:
            done = backend_of(target).start(command, timeout_s=_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            raise ModelError(
                f"{target.title} did not answer within {_TIMEOUT_S:.0f} s: {request['do']} of "
                f"{request.get('model', 'both models')}"
            ) from None
        if not answer.exists():
            tail = (done.stderr.strip().splitlines() or ["no message"])[-1]
            raise ModelError(
                f"the process on {target.title} ended with status {done.returncode}: {tail}"
            )
        found: dict[str, Any] = json.loads(answer.read_text(encoding="utf-8"))
    if "error" in found:
        raise getattr(errors, found["error"], ModelError)(found["message"])
    return found

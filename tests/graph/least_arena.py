"""The least CPU arena in which a model runs, found by trial: bytes in use, measured without events.

Builds before 1.20 (onnxruntime-training's last is 1.19.2) record no memory in their profile, but they
honour a hard cap. With one region of that size, every chunk split, the least cap is the most bytes
that were in use, kernels' workspace and rounding included, and where buffers of many sizes come and
go what fragmentation costs. A cap is tried in a forked process: such builds register one arena per
process, and a fork costs milliseconds.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from planner.errors import ModelError
from planner.files.temporary import temporary_folder
from planner.processes.children import end_with_parent, run_child
from planner.runtime.options import NEXT_POWER_OF_TWO, Opening, use_registered_arena
from planner.runtime.profile import create_session

_REFUSED = "smaller than requested bytes"
Feeds = Mapping[str, npt.NDArray[Any]]
Sized = tuple[Path, Feeds]
"""A model file and its inputs."""


def least_arenas(
    models: Sequence[Sized], guesses: Sequence[int], *, most_bytes: int, granularity_bytes: int
) -> tuple[int, ...]:
    """Bytes of the least arena of each model; one thread, no reuse, no memory pattern.

    Args:
        guesses: bytes near which each model's answer may be, to be looked at first.
        most_bytes: the largest cap to try; no arena may need more.
        granularity_bytes: a multiple of 256, which the arena rounds to.

    Raises:
        ModelError: a model does not run within `most_bytes`, with ONNX Runtime's reason.
    """
    shared = {"most_bytes": most_bytes, "granularity_bytes": granularity_bytes}
    return _answers(models, [{**shared, "guess": guess} for guess in guesses])


def fit_arenas(models: Sequence[Sized], caps: Sequence[int]) -> tuple[bool, ...]:
    """Tell of each model whether it runs in an arena of its cap's bytes, as in `least_arenas`.

    Raises:
        ModelError: a model does not run for another reason.
    """
    return _answers(models, [{"cap": cap} for cap in caps])


def _answers(models: Sequence[Sized], questions: Sequence[Mapping[str, int]]) -> tuple[Any, ...]:
    """Have a process answer a question about each model."""
    with temporary_folder() as folder:
        requests = []
        for number, (model, feeds) in enumerate(models):
            np.savez(folder / f"{number}.npz", *feeds.values())
            about = {"model": str(Path(model).resolve()), "inputs": f"{number}.npz"}
            requests.append({**about, "names": list(feeds), **questions[number]})
        path = folder / "request.json"
        path.write_text(json.dumps(requests))
        done = run_child([sys.executable, "-P", __file__, str(path)], timeout_s=600.0)
    if done.returncode:
        tail = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise ModelError(f"the least arena cannot be measured: {tail}")
    answers = json.loads(done.stdout.strip().splitlines()[-1])
    for (model, _), answer in zip(models, answers, strict=True):
        if isinstance(answer, str):
            raise ModelError(f"{model} does not run under a cap: {answer}")
    return tuple(answers)


def main(request_path: str) -> None:
    """Answer a list: bytes, whether a model fits, or why there is no answer."""
    end_with_parent()
    import onnxruntime  # noqa: F401  # before any fork: it takes longer than a run

    folder = Path(request_path).parent
    answers: list[int | str] = []
    for request in json.loads(Path(request_path).read_text()):
        with np.load(folder / request["inputs"]) as data:
            arrays = [data[f"arr_{i}"] for i in range(len(request["names"]))]
        feeds = dict(zip(request["names"], arrays, strict=True))
        how = _bisect if "guess" in request else _fits
        answers.append(how(Path(request["model"]), feeds, request))
    print(json.dumps(answers))


def _fits(model: Path, feeds: Feeds, request: Mapping[str, Any]) -> bool | str:
    message = _tried(model, feeds, int(request["cap"]))
    return message if message and _REFUSED not in message else not message


def _bisect(model: Path, feeds: Feeds, request: Mapping[str, Any]) -> int | str:
    step = int(request["granularity_bytes"])
    low, high = 0, -(-int(request["most_bytes"]) // step) * step
    message = _tried(model, feeds, high)
    if message:
        return message
    guess = int(request["guess"]) // step * step
    near = [guess - 2 * step, guess + 2 * step]
    while high - low > step:
        middle = near.pop() if near else (low + high) // 2 // step * step
        if not low < middle < high:
            continue
        message = _tried(model, feeds, middle)
        if message and _REFUSED not in message:
            return message
        low, high = (middle, high) if message else (low, middle)
    return high


def _tried(model: Path, feeds: Feeds, cap: int) -> str:
    """Run in a child; "" where it ran, else the reason."""
    reader, writer = os.pipe()
    parent = os.getpid()
    child = os.fork()
    if child == 0:
        end_with_parent(parent)
        os.close(reader)
        message = _run(model, feeds, cap)
        os.write(writer, message.encode()[-4000:])
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        message = pipe.read().decode(errors="replace")
    _, status = os.waitpid(child, 0)
    return f"the process ended with status {status}" if status else message


def _run(model: Path, feeds: Feeds, cap: int) -> str:
    try:
        options = Opening(level="disabled", threads=1).options()
        options.enable_mem_pattern = False
        options.enable_mem_reuse = False
        options.add_session_config_entry("session.disable_prepacking", "1")
        arena = {
            "max_mem": cap,
            "arena_extend_strategy": NEXT_POWER_OF_TWO,
            "initial_chunk_size_bytes": cap,
            "max_dead_bytes_per_chunk": 1,
        }
        use_registered_arena(options, arena)
        create_session(model, options).run(None, dict(feeds))
    except Exception as error:
        return str(error) or type(error).__name__
    return ""


if __name__ == "__main__":
    main(sys.argv[1])

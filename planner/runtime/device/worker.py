"""Work on a device, in a process of its own: `python -m planner.runtime.device.worker FILE`.

FILE is the JSON request that `planner.runtime.device.client` writes; the answer is the JSON file that it
names. A separate process has three reasons: it can start with the device's needs (a driver, a Vulkan
loader, a namespace), planner survives a provider that crashes, and the counted bytes are the model's
alone.

    optimize   save the graph as the target's optimizers leave it, and say where each node runs
    run        run a model, with a profile or under a cap; outputs, events and bytes
    capped     run a model in arenas of rising sizes, until it runs
    events     times of a model's nodes, each launch of which waits for its kernel
    issue      time of steps of nodes that are only issued, and of copies
    time       run two models in turns
"""

from __future__ import annotations

import gc
import json
import math
import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from planner.errors import ModelError, PlannerError, UsageError
from planner.processes.children import end_with_parent
from planner.runtime.device import op_times
from planner.runtime.messages import explain_refusal
from planner.runtime.options import Opening, cap_arena, hold_no_more
from planner.runtime.profile import read_profile, run_session
from planner.targets import HOST, Target, target_named
from planner.targets.backend import backend_of
from planner.units import counted

Request = Mapping[str, Any]
_COLD, _EVENT_RUNS, _STEPS = 2, 4, 12
_CAPPED_RUNS = 2  # in a row: the first run leaves a fragmented arena to the second


def optimize(target: Target, request: Request) -> dict[str, Any]:
    """Save the optimized graph; `placed` has the provider of each node that the model has a name for."""
    options = Opening(level=request["level"], threads=1).options()
    options.optimized_model_filepath = request["target"]
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    if request["external"]:
        stem = Path(request["target"]).stem
        prefix = "session.optimized_model_external_initializers_"
        options.add_session_config_entry(f"{prefix}file_name", f"{stem}.data")
        options.add_session_config_entry(f"{prefix}min_size_in_bytes", "1024")
    session = backend_of(target).open(Path(request["model"]), options, request["settings"])
    placed = {
        node.name: part.ep_name
        for part in session.get_provider_graph_assignment_info()
        for node in part.get_nodes()
    }
    return {"placed": placed}


def run(target: Target, request: Request) -> dict[str, Any]:
    """Run a model several times.

    Bytes are those of the process, initializers included; the driver enforces the cap, in the runs,
    which have no profile then.
    """
    counter = backend_of(target).counter()
    folder = Path(request["folder"])
    cap = request["cap_bytes"]
    opening = Opening(level=request["level"], order=request["order"], threads=1)
    options = opening.options(profile_prefix=None if cap else folder / "profile")
    if request["memory"] == "recommended":
        hold_no_more(options)
    session = backend_of(target).open(Path(request["model"]), options, request["settings"])
    feeds = _feeds(session, request)
    names = [o.name for o in session.get_outputs()]
    if counter and cap:
        counter.cap(cap)
    peaks: list[int] = []
    for number in range(request["runs"]):
        gc.collect()
        if counter:
            counter.reset_peak()
        try:
            results = run_session(session, feeds)
        except ModelError as error:
            raise ModelError(explain_refusal(str(error))) from error
        if counter:
            peaks.append(counter.peak_bytes())
            if refused := counter.refused():
                raise ModelError(f"the device refused {counted(refused, 'buffer')} beyond its cap")
        if number < request["keep"]:
            _keep(results, folder, number)
        del results
    events: list[dict[str, Any]] = []
    if not cap:
        runs = read_profile(Path(session.end_profiling()))
        events = [asdict(event) for event in runs[0]]
        peaks = peaks or _arena_peaks(runs)
    return {"names": names, "peak_bytes": peaks, "events": events}


def capped(target: Target, request: Request) -> dict[str, Any]:
    """Run a model in arenas of given sizes, registered one after the other, until it runs in one."""
    messages: list[str] = []
    for number, (region, cap) in enumerate(request["arenas"]):
        options = Opening(level=request["level"], order=request["order"], threads=1).options()
        hold_no_more(options)
        try:
            cap_arena(options, region, limit_bytes=cap, target=target)
        except UsageError as error:  # the device has not so much left
            messages.append(str(error))
            continue
        session: Any = None
        try:
            session = backend_of(target).open(Path(request["model"]), options, request["settings"])
            feeds = _feeds(session, request)
            for turn in range(_CAPPED_RUNS):
                results = run_session(session, feeds)
                if not turn:
                    _keep(results, Path(request["folder"]), 0)
                del results
        except ModelError as error:
            messages.append(explain_refusal(str(error)))
        else:
            names = [o.name for o in session.get_outputs()]
            return {"passed": number, "messages": messages, "names": names}
        del session
        gc.collect()
    return {"passed": None, "messages": messages, "names": []}


def _keep(results: list[Any], folder: Path, number: int) -> None:
    """Save the outputs of a run for the client."""
    for i, array in enumerate(results):
        np.save(folder / f"run{number}_{i}.npy", array, allow_pickle=False)


def in_turns(target: Target, request: Request) -> dict[str, Any]:
    """Return the seconds of each run of two models, after a warm-up; the first of each turn
    alternates.

    With `bound`, inputs and outputs lie where the session reads and writes them: the time includes no
    copy that the caller could avoid.
    """
    options = [Opening(order=order).options() for order in request["orders"]]
    if target.is_arena:
        for chosen in options:
            hold_no_more(chosen)  # a pattern's block may not fit beside the first run's bytes
    pair = [
        backend_of(target).open(Path(path), chosen, request["settings"])
        for path, chosen in zip(request["models"], options, strict=True)
    ]
    steps = [
        (bound_step if request["bound"] else unbound_step)(session, _feeds(session, request))
        for session in pair
    ]
    found: tuple[list[float], list[float]] = ([], [])
    for number in range(request["runs"] + 1):
        for which in (0, 1) if number % 2 else (1, 0):
            step = steps[which]()
            start = time.perf_counter()
            step()
            if number:
                found[which].append(time.perf_counter() - start)
    return {"original_s": found[0], "rewritten_s": found[1]}


def events(target: Target, request: Request) -> dict[str, Any]:
    """Return the least event of each node of a model, and the event of a chain's node, where launches
    wait.

    The process must start for this alone: a driver reads the variables when it is first used.
    """
    folder = Path(request["folder"])

    def least_us(model: Path, feeds: Mapping[str, Any], prefix: str) -> dict[str, float]:
        opening = Opening(level=request["level"], threads=1)
        options = opening.options(profile_prefix=folder / prefix)
        hold_no_more(options)
        session = backend_of(target).open(model, options, request["settings"])
        feeds = feeds or _feeds(session, request)
        for _ in range(_COLD + _EVENT_RUNS):
            run_session(session, feeds)
        runs = read_profile(Path(session.end_profiling()))[_COLD:]
        found: dict[str, float] = {}
        for event in (event for run in runs for event in run):
            found[event.name] = min(found.get(event.name, math.inf), event.duration_us)
        return found

    model = op_times.chain(op_times.LONG)
    chained = least_us(
        op_times.write(model, folder, "chain"), op_times.floats(model), "chain_profile"
    )
    return {
        "event_us": least_us(Path(request["model"]), {}, "profile"),
        "chain_us": statistics.median(chained.values()),
        "runs": _EVENT_RUNS,
    }


def issue(target: Target, request: Request) -> dict[str, Any]:
    """Return the seconds of steps of a short and a long chain, and of small and large copies."""
    folder = Path(request["folder"])
    models = {
        "chain": [op_times.chain(n) for n in (op_times.SHORT, op_times.LONG)],
        **{
            kind: [
                op_times.copied(size, back=kind == "both")
                for size in (op_times.SMALL_BYTES, op_times.LARGE_BYTES)
            ]
            for kind in ("out", "both")
        },
        "fed": [op_times.fed(n) for n in (op_times.SMALL_BYTES, op_times.LARGE_BYTES)],
    }
    found: dict[str, list[float]] = {}
    for kind, pair in models.items():
        found[kind] = []
        for number, model in enumerate(pair):
            options = Opening(level="disabled", threads=1).options()
            hold_no_more(options)
            path = op_times.write(model, folder, f"{kind}{number}")
            session = backend_of(target).open(path, options, request["settings"])
            steps = bound_step(session, op_times.floats(model))
            found[kind].append(_least_s(steps))
    return found


def _least_s(steps: Callable[[], Callable[[], None]]) -> float:
    """Return the least time of a step."""
    found: list[float] = []
    for number in range(_COLD + _STEPS):
        step = steps()
        start = time.perf_counter()
        step()
        if number >= _COLD:
            found.append(time.perf_counter() - start)
    return min(found)


def bound_step(session: Any, feeds: Mapping[str, Any]) -> Callable[[], Callable[[], None]]:
    """Return steps of a session on values that lie where it reads them; the feeds are put there once.

    Returns:
        A function that releases the last step's outputs and returns the next step.
    """
    import onnxruntime as ort

    binding = session.io_binding()
    for node, memory in zip(session.get_inputs(), session.get_input_memory_infos(), strict=True):
        if node.name in feeds:
            place = _place(memory)
            value = ort.OrtValue.ortvalue_from_numpy(feeds[node.name], place, memory.device_id)
            binding.bind_ortvalue_input(node.name, value)
    outputs = [
        (node.name, _place(memory), memory.device_id)
        for node, memory in zip(
            session.get_outputs(), session.get_output_memory_infos(), strict=True
        )
    ]

    def next_step() -> Callable[[], None]:
        binding.clear_binding_outputs()
        for name, place, number in outputs:
            binding.bind_output(name, place, number)
        return lambda: session.run_with_iobinding(binding)

    return next_step


def _place(memory: Any) -> str:
    """Return the device of a session's value by its name in bindings; pinned memory is the host's."""
    name = memory.name.lower()
    host = HOST.memory.lower()
    return host if host in name or "pinned" in name else name


def unbound_step(session: Any, feeds: Mapping[str, Any]) -> Callable[[], Callable[[], None]]:
    """Return steps of a session on arrays on the host."""

    def step() -> None:
        run_session(session, feeds)

    return lambda: step


def _feeds(session: Any, request: Request) -> dict[str, Any]:
    files = request["inputs"]
    return {i.name: np.load(files[i.name]) for i in session.get_inputs() if i.name in files}


def _arena_peaks(runs: Any) -> list[int]:
    """Return the arena's high-water marks, where the provider reports one with each node."""
    return [max(found) for run in runs if (found := [e.held for e in run if e.held is not None])]


_WORK: Mapping[str, Callable[[Target, Request], dict[str, Any]]] = {
    "optimize": optimize,
    "run": run,
    "capped": capped,
    "events": events,
    "issue": issue,
    "time": in_turns,
}


def main(request_path: str) -> None:
    """Carry out the request; return an error of planner's as its type and message."""
    end_with_parent()
    request = json.loads(Path(request_path).read_text(encoding="utf-8"))
    target = target_named(request["device"])
    if request["do"] == "events":
        os.environ |= target.waits
    try:
        backend_of(target).check()
        answer = _WORK[request["do"]](target, request)
    except PlannerError as error:
        answer = {"error": type(error).__name__, "message": str(error)}
    Path(request["answer"]).write_text(json.dumps(answer), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1])

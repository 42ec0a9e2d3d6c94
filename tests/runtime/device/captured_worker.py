"""Steps of a session that replays its launches beside a plain one's, on WebGPU: prints what differs."""

from __future__ import annotations

import json
import sys

import numpy as np
import onnxruntime as ort

import planner
from planner.errors import UsageError
from planner.runtime.binding.buffers import is_captured
from planner.runtime.feeds.inputs import make_inputs

STEPS = 5


def main(model: str, planned: str) -> None:
    """Print what differs in each step, the places of the values, and how `run` answers.

    The last session that replays has its options from `planner.session_options`.
    """
    inputs, _ = make_inputs(model, seed=1)
    kept = {name: array for name, array in inputs.items() if name.startswith("w")}
    fed = {name: array for name, array in inputs.items() if name not in kept}
    sessions = [planner.open_session(planned, graph_capture=way) for way in (True, False)]
    differs: list[list[str]] = []
    stale: list[int] = []
    replays: list[bool] = []
    by_options = ort.InferenceSession(planned, planner.session_options(planned, graph_capture=True))
    # the second has the first one's session, and records of its own
    for replaying in (sessions[0], sessions[0], by_options):
        captured, plain = (planner.bind(s, kept) for s in (replaying, sessions[1]))
        replays.append(is_captured(replaying))
        given: list[tuple[np.ndarray, bytes]] = []
        for step in range(STEPS):
            if step == STEPS - 2:
                captured.put(kept), plain.put(kept)
            batch = {n: (a + 0.1 * step).astype(a.dtype) for n, a in fed.items()}
            found = {**captured.step(batch), **captured.values()}
            wanted = {**plain.step(batch), **plain.values()}
            differs.append([n for n in wanted if found[n].tobytes() != wanted[n].tobytes()])
            given += [(array, array.tobytes()) for array in found.values()]
        stale.append(sum(array.tobytes() != bits for array, bits in given))
    moved = any(array.tobytes() != kept[name].tobytes() for name, array in plain.values().items())
    try:
        sessions[0].run(None, inputs)
        said = ""
    except UsageError as error:
        said = str(error)
    places = sorted(set(captured.places.values()))
    shown = {"differs": differs, "stale": stale, "moved": moved, "places": places, "said": said}
    shown["replays"] = replays
    print(json.dumps(shown))


if __name__ == "__main__":
    main(*sys.argv[1:])

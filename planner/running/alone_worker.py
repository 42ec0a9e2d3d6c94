"""Open one model with one call and run it: `python -m planner.running.alone_worker FILE`.

FILE is the JSON that `planner.runtime.judge.alone` writes; the answer is one line of JSON on stdout.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from planner import native
from planner.processes.children import end_with_parent
from planner.running.digest import digest_of
from planner.runtime.arrays import run_arrays
from planner.runtime.machine import proc_bytes

_STATUS, _PUT_BACK = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def main(request_path: str) -> None:
    """Print `{"digests": [{name: hex}], "grown_bytes": [int], "results_bytes": int, "held_bytes": int
    or null}`, or `{"failure": str}`."""
    end_with_parent()
    path = Path(request_path)
    try:
        print(json.dumps(_answer(json.loads(path.read_text()), path.parent)))
    except Exception as error:
        print(json.dumps({"failure": str(error) or type(error).__name__}))


def _answer(request: dict[str, Any], folder: Path) -> dict[str, Any]:
    import onnxruntime

    path = request["model"]
    inputs = {name: np.load(folder / file) for name, file in request["inputs"].items()}
    if request["options"] == "default":
        session = onnxruntime.InferenceSession(path, _options(path))
    else:
        from planner.running.classes import open_session

        session = open_session(path)
    names = [output.name for output in session.get_outputs()]
    answer: dict[str, Any] = {"digests": [], "grown_bytes": [], "results_bytes": 0}
    before = _put_back()
    for _ in range(request["runs"]):
        # the previous run's results are still held, as in a training loop
        results = run_arrays(session, inputs)
        answer["grown_bytes"].append(max(0, _bytes("VmHWM") - before))
        arrays = [np.asarray(array) for array in results]
        answer["results_bytes"] = sum(array.nbytes for array in arrays)
        found = {n: digest_of(a) for n, a in zip(names, arrays, strict=True)}
        found |= {n: digest_of(inputs[n]) for n in request["written"] if n in inputs}
        answer["digests"].append(found)
    pool = native.pool() if native.is_built() else None
    answer["held_bytes"] = pool and pool.pages_most * pool.page_bytes + pool.spilled_most_bytes
    return answer


def _options(path: str) -> Any:
    """Return default options, with the library that the file needs."""
    import onnxruntime

    from planner.runtime.swapping import register_for

    options = onnxruntime.SessionOptions()
    register_for(options, Path(path))
    return options


def _put_back() -> int:
    """Reset the high-water mark of memory, and return the resident bytes."""
    try:
        _PUT_BACK.write_text("5")
    except OSError:
        return _bytes("VmHWM")  # without a reset, only growth above the session's creation counts
    return _bytes("VmRSS")


def _bytes(key: str) -> int:
    """Return a memory figure of this process in bytes; 0 where the system has none."""
    return proc_bytes(_STATUS, key) or 0


if __name__ == "__main__":
    main(sys.argv[1])

"""Open one model in one way and run it: `python -m planner.running.alone_worker FILE`.

It is a process of its own, because a failed run may leave memory behind. FILE is the JSON that
`planner.runtime.judge.alone` writes; the answer is one line of JSON on stdout.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from planner import native
from planner.plan.planfile import Pool
from planner.processes.children import end_with_parent
from planner.running.digest import digest_of
from planner.runtime.arrays import run_arrays
from planner.runtime.machine import proc_bytes
from planner.runtime.options import Opening, hold_no_more
from planner.runtime.profile import create_session, run_session
from planner.runtime.swapping import put_pool, register_for
from planner.targets import HOST

_STATUS, _PUT_BACK = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def main(request_path: str) -> None:
    """Print `{"digests": [{name: hex}], "grown_bytes": [int], "results_bytes": int, "held_bytes": int
    or null, "spilled_bytes": int}`, or `{"failure": str}`."""
    end_with_parent()
    path = Path(request_path)
    try:
        print(json.dumps(_answer(json.loads(path.read_text()), path.parent)))
    except Exception as error:
        print(json.dumps({"failure": str(error) or type(error).__name__}))


def _answer(request: dict[str, Any], folder: Path) -> dict[str, Any]:
    is_capped = request["options"] == "capped"
    # a capped run maps them, copy on write because some kernels write over their inputs; where growth is
    # measured, they are resident before
    mode = "c" if is_capped else None
    inputs = {n: np.load(folder / file, mmap_mode=mode) for n, file in request["inputs"].items()}
    session = _session(request)
    names = [output.name for output in session.get_outputs()]
    answer: dict[str, Any] = {"digests": [], "grown_bytes": [], "results_bytes": 0}
    before = _put_back()
    for _ in range(request["runs"]):
        if is_capped:
            run_session(session, inputs)  # the results are dropped: they would lie in the pool
            continue
        # the previous run's results are still held, as in a training loop
        results = run_arrays(session, inputs)
        answer["grown_bytes"].append(max(0, status_bytes("VmHWM") - before))
        arrays = [np.asarray(array) for array in results]
        answer["results_bytes"] = sum(array.nbytes for array in arrays)
        found = {n: digest_of(a) for n, a in zip(names, arrays, strict=True)}
        found |= {n: digest_of(inputs[n]) for n in request["written"] if n in inputs}
        answer["digests"].append(found)
    pool = native.pool() if native.is_built() else None
    answer["held_bytes"] = pool and pool.pages_most * pool.page_bytes + pool.spilled_most_bytes
    answer["spilled_bytes"] = pool.spilled_most_bytes if pool else 0
    return answer


def _session(request: dict[str, Any]) -> Any:
    """Open the model in the way that is asked for."""
    import onnxruntime

    path = request["model"]
    if request["options"] == "recommended":
        from planner.running.classes import open_session

        return open_session(path)
    if request["options"] == "default":
        options = onnxruntime.SessionOptions()
        register_for(options, Path(path))
        return onnxruntime.InferenceSession(path, options)
    options = Opening(
        level=request["level"],
        order=request["order"],
        threads=request["threads"],
        packed=False,  # a packed copy of a weight would lie in the pool, and the plan does not count it
    ).options()
    hold_no_more(options)
    put_pool(options, Pool(bytes=request["pool_bytes"], is_proved=not request["spills"]), HOST)
    return create_session(Path(path), options)


def _put_back() -> int:
    """Reset the high-water mark of memory, and return the resident bytes."""
    try:
        _PUT_BACK.write_text("5")
    except OSError:
        # without a reset, only growth above the session's creation counts
        return status_bytes("VmHWM")
    return status_bytes("VmRSS")


def status_bytes(key: str) -> int:
    """Return a memory figure of this process in bytes; 0 where the system has none."""
    return proc_bytes(_STATUS, key) or 0


if __name__ == "__main__":
    main(sys.argv[1])

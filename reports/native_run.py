"""Steps of one file in one way: `python -m reports.native_run ORIGINAL FILE WAY STEPS INPUTS`.

WAY is "default", "file" (`planner.open_session`), or the size of a pool; INPUTS "new" in each step, or
the "same" throughout, where the process's memory is looked at. One line of JSON on stdout; status 3 where
the pool has no room.
"""

from __future__ import annotations

import ctypes
import json
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np

_LOOKED_ON = 40
"""Number of steps in which a thread samples the kernels' workspace: it may miss it in one."""


def main(original: str, file: str, way: str, steps: int, inputs: str) -> int:
    """Run the steps, and print the figures."""
    import onnxruntime as ort

    import planner
    from planner import native
    from planner.running.alone_worker import status_bytes
    from planner.running.digest import digest_of
    from planner.runtime.feeds.inputs import make_inputs

    native.library()
    feeds = make_inputs(Path(original), seed=0)[0]
    before, code_before = status_bytes("VmRSS"), status_bytes("RssFile")
    Path("/proc/self/clear_refs").write_text("5")  # restart the high-water mark
    digests: list[list[str]] = []
    try:
        if way == "default":
            session = ort.InferenceSession(file)
        else:
            session = planner.open_session(file, pool=None if way == "file" else way)
        created = status_bytes("VmRSS") - before - (status_bytes("RssFile") - code_before)
        for step in range(steps):
            if inputs == "same":
                ort.InferenceSession.run(session, None, feeds)  # without copies for the caller
                continue
            found = session.run(None, feeds)
            digests.append([digest_of(np.asarray(array)) for array in found])
            feeds = make_inputs(Path(original), seed=step + 1)[0]
            del found
    except Exception as error:
        there = native.pool()
        if way in ("default", "file") or there is None or not there.refusals:
            raise
        print(error, file=sys.stderr)
        return 3
    grown, code = status_bytes("VmHWM") - before, status_bytes("RssFile") - code_before
    counts, pool = native.counts(), native.pool()
    answer = {
        "grown_bytes": grown,
        "session_bytes": created,
        "code_bytes": code,
        "slot_bytes": counts.slot_bytes,
        "copies": counts.swaps_out + counts.swaps_in,
        "digests": digests,
        "scratch_bytes": _scratch_bytes(session, feeds) if inputs == "same" else 0,
    }
    if pool is not None:
        answer |= {"pool_bytes": pool.pool_bytes, "asked_most_bytes": pool.asked_most_bytes}
        answer |= {"mappings": pool.mappings}
    print(json.dumps(answer))
    return 0


class _Heap(ctypes.Structure):
    """The result of glibc's `mallinfo2`."""

    _fields_ = [
        *((name, ctypes.c_size_t) for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd")),
        *((name, ctypes.c_size_t) for name in ("usmblks", "fsmblks", "used", "free", "keepcost")),
    ]


def _scratch_bytes(session: Any, feeds: dict[str, Any]) -> int:
    """Sample, in a thread, the most of malloc's memory that a run takes in addition to before."""
    import onnxruntime as ort

    libc = ctypes.CDLL(None)
    libc.mallinfo2.restype = _Heap
    seen: list[int] = [0]
    is_over = threading.Event()

    def look() -> None:
        while not is_over.is_set():
            heap = libc.mallinfo2()
            seen[0] = max(seen[0], heap.used + heap.hblkhd)

    heap = libc.mallinfo2()
    before = heap.used + heap.hblkhd
    thread = threading.Thread(target=look)
    thread.start()
    for _ in range(_LOOKED_ON):
        ort.InferenceSession.run(session, None, feeds)
    is_over.set()
    thread.join()
    return seen[0] - before


if __name__ == "__main__":
    of, path, how, count, fed = sys.argv[1:]
    sys.exit(main(of, path, how, int(count), fed))

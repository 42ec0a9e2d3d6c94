"""Steps of one file in one way: `python -m reports.native_run ORIGINAL PLANNED WAY STEPS`.

WAY is "default", "file" (`planner.open_session`), or the size of a pool. One line of JSON on stdout;
status 3 where the pool has no room.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np


def main(original: str, planned: str, way: str, steps: int) -> int:
    """Run and print."""
    import onnxruntime as ort

    import planner
    from planner import native
    from planner.runtime.feeds.inputs import make_inputs

    feeds = make_inputs(Path(original), seed=1)[0]
    in_pool = way not in ("default", "file")
    before = _status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the high-water mark begins anew
    try:
        if way == "default":
            session = ort.InferenceSession(planned)
        else:
            session = planner.open_session(planned, pool=way if in_pool else None)
        found = session.run(None, feeds)
        for _ in range(steps - 1):
            del found
            found = session.run(None, feeds)
    except Exception as error:
        there = native.pool() if in_pool else None
        if there is None or not there.refusals:
            raise
        print(error, file=sys.stderr)
        return 3
    answer: dict[str, int] = {"grown_bytes": _status("VmHWM") - before}
    if in_pool:
        there = native.pool()
        assert there is not None and there.pages_most * there.page_bytes <= there.pool_bytes
        answer |= {"asked_most_bytes": there.asked_most_bytes, "mappings": there.mappings}
    found = [np.array(array) for array in found]
    del session
    plain = ort.InferenceSession(original)
    names = [output.name for output in plain.get_outputs()]
    expected = plain.run(names, feeds)
    same = sum(a.tobytes() == b.tobytes() for a, b in zip(found, expected, strict=True))
    print(json.dumps(answer | {"outputs": len(names), "identical": same}))
    return 0


def _status(key: str) -> int:
    """Bytes of an entry of this process's status."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{key}:"):
            return 1024 * int(line.split()[1])
    raise LookupError(key)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:4], int(sys.argv[4])))

"""Run one model in a pool of a given size: `python -m planner.runtime.judge.cap.worker FILE`.

It is a process of its own, because a failed run may leave memory behind. FILE is the JSON request written
by `planner.runtime.judge.cap.run`; the answer is one line of JSON on stdout.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np

from planner import native
from planner.errors import ModelError, UsageError
from planner.plan.planfile import Pool
from planner.processes.children import end_with_parent
from planner.runtime.options import Opening, hold_no_more
from planner.runtime.profile import create_session, run_session
from planner.runtime.swapping import put_pool
from planner.targets import HOST


def main(request_path: str) -> None:
    """Print `{"message": str, "spilled_bytes": int}`; the message says what failed, "" for nothing."""
    end_with_parent()
    folder = Path(request_path).parent
    request = json.loads(Path(request_path).read_text())
    options = Opening(
        level=request["level"],
        order=request["order"],
        threads=request["threads"],
        packed=False,  # a packed copy of a weight would lie in the pool, and the plan does not count it
    ).options()
    hold_no_more(options)
    try:
        put_pool(options, Pool(bytes=request["pool_bytes"], is_proved=not request["spills"]), HOST)
        # copy on write, because some kernels write over their inputs
        inputs = {
            name: np.load(folder / file, mmap_mode="c") for name, file in request["inputs"].items()
        }
        session = create_session(Path(request["model"]), options)
        for _ in range(request["runs"]):
            run_session(session, inputs)  # the result is dropped before the next run
    except (ModelError, UsageError) as error:
        print(json.dumps({"message": str(error), "spilled_bytes": 0}))
        return
    pool = native.pool()
    spilled_bytes = 0 if pool is None else pool.spilled_most_bytes
    print(json.dumps({"message": "", "spilled_bytes": spilled_bytes}))


if __name__ == "__main__":
    main(sys.argv[1])

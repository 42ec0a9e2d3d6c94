"""Run one model under a hard arena cap: `python -m planner.runtime.judge.cap_worker FILE`.

A process of its own, because a registered arena is the whole process's and a failed run may leave
one behind. FILE is the JSON request written by `planner.runtime.judge.cap`; the answer is one line of
JSON on stdout.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np

from planner.errors import ModelError
from planner.processes.children import end_with_parent
from planner.runtime.options import cap_arena, hold_no_more, session_options
from planner.runtime.profile import create_session, run_session


def main(request_path: str) -> None:
    """Answer `{"passed": bool, "message": str}`."""
    end_with_parent()
    folder = Path(request_path).parent
    request = json.loads(Path(request_path).read_text())
    options = session_options(
        level=request["level"], order=request["order"], threads=request["threads"]
    )
    hold_no_more(options)
    # a packed copy of a weight would stand in the arena beside what the plan counts
    options.add_session_config_entry("session.disable_prepacking", "1")
    cap_arena(options, request["cap_bytes"], request["first_region_bytes"])
    try:
        # copy on write: some kernels write over their inputs
        inputs = {
            name: np.load(folder / file, mmap_mode="c") for name, file in request["inputs"].items()
        }
        session = create_session(Path(request["model"]), options)
        for _ in range(request["runs"]):
            run_session(session, inputs)  # the result is dropped before the next run
    except ModelError as error:
        print(json.dumps({"passed": False, "message": str(error)}))
        return
    print(json.dumps({"passed": True, "message": ""}))


if __name__ == "__main__":
    main(sys.argv[1])

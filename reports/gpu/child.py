"""One check in a process of its own: `python -m reports.gpu.child NAME`; its answer is a line of JSON."""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any

from planner.processes.children import end_with_parent

_ANSWER = "answer: "


def answer_in(text: str) -> dict[str, Any] | None:
    """Return a child's answer, or None if there is none."""
    lines = [line for line in text.splitlines() if line.startswith(_ANSWER)]
    return json.loads(lines[-1].removeprefix(_ANSWER)) if lines else None


def main(arguments: list[str] | None = None) -> None:
    """Run the check."""
    end_with_parent()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name")
    parser.add_argument("--rehearse", action="store_true")
    parser.add_argument("--graphs", type=Path, default=Path())
    parser.add_argument("--work", type=Path, default=Path())
    asked = parser.parse_args(arguments)
    from reports.gpu import basics, fused, large
    from reports.gpu.graphs import Where

    where = Where(not asked.rehearse)
    if where.cuda:
        import onnxruntime as ort

        ort.preload_dlls()  # CUDA's and cuDNN's, from PyTorch's packages
    checks = basics.CHECKS | fused.CHECKS
    if asked.name in checks:
        found = checks[asked.name](where)
    elif asked.name.startswith("memory:"):
        _, kind, size = asked.name.split(":")
        found = basics.memory(where, kind, int(size))
    else:
        found = large.check(asked.name, where, asked.graphs, asked.work)
    print(_ANSWER + json.dumps(found), flush=True)
    os._exit(0)  # the control's copies may still be under way


if __name__ == "__main__":
    main()

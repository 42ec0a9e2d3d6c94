"""A child process: programs of planner.fused by the library's test build, whose kernel is CUDA's, on the
fake driver and compiler.

Arguments: that library, and a folder with a file `cases`: pickled pairs of a program, or a model, and its
feeds. It writes `results`: what each makes, or what the error says.
"""

from __future__ import annotations

import pickle
import sys
from pathlib import Path

from tests.fuse.graphs import Array, pointwise, session


def main() -> None:
    """Run all cases."""
    library, folder = map(Path, sys.argv[1:])
    results: list[list[Array] | str] = []
    for case, feeds in pickle.loads((folder / "cases").read_bytes()):
        try:
            if isinstance(case, str):
                results.append(pointwise(case, feeds, library=library))
            else:
                results.append(session(case, library=library).run(None, feeds))
        except Exception as error:
            results.append(str(error))
    (folder / "results").write_bytes(pickle.dumps(results))


if __name__ == "__main__":
    main()

"""A child process: programs of planner.fused by the library's test build, whose kernel is CUDA's, on the
fake driver and compiler.

Arguments: that library, and a folder with a file `cases`: pickled pairs of a program, or a model, and its
feeds. It writes `results`: what each makes, or what the error says. With "threads" behind it, four
threads run each session at once, too, and have the same bits.
"""

from __future__ import annotations

import pickle
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.fuse.graphs import Array, pointwise_model, same_bits, session


def main() -> None:
    """Run all cases."""
    library, folder = map(Path, sys.argv[1:3])
    results: list[list[Array] | str] = []
    for case, feeds in pickle.loads((folder / "cases").read_bytes()):
        try:
            model = pointwise_model(case, feeds) if isinstance(case, str) else case
            opened = session(model, library=library)
            results.append(opened.run(None, feeds))
            if sys.argv[3:] == ["threads"]:
                with ThreadPoolExecutor(4) as pool:
                    again = pool.map(lambda _: opened.run(None, feeds), range(12))  # noqa: B023
                    assert all(all(map(same_bits, results[-1], each)) for each in again)
        except Exception as error:
            results.append(str(error))
    (folder / "results").write_bytes(pickle.dumps(results))


if __name__ == "__main__":
    main()

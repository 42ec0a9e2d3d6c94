"""A child process: a chain of swaps through ONNX Runtime, by the CUDA backend on the fake driver.

Arguments: the library's test build, and "x" or "no-x" for whether SwapOutDone reads what is copied.
Writes how many of its steps have other bits than without swaps.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from tests.native.graphs import bits, chain, chain_feeds, plain, session

STEPS = 12


def main() -> None:
    """Run the steps."""
    library, edge = Path(sys.argv[1]), sys.argv[2]
    reference = plain(chain(swaps=False))
    swapped = session(chain(keeps_x=edge == "x"), library=library)
    feeds = [chain_feeds(seed=seed) for seed in range(STEPS)]
    print(sum(bits(swapped, each) != bits(reference, each) for each in feeds), flush=True)
    os._exit(0)  # a mutant's copies may still be under way


if __name__ == "__main__":
    main()

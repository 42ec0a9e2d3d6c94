"""A child process: steps through ONNX Runtime, by the CUDA backend on the fake driver.

Arguments: the library's test build, and what runs: "chain", swaps; "no-x", where SwapOutDone reads not
what is copied; "stores", weights of the host that are updated there from step to step.
Writes how many of its steps have other bits than without copies.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import planner
from tests.native.graphs import (
    bits,
    chain,
    chain_feeds,
    plain,
    session,
    store_feeds,
    stores,
)

STEPS = 12


def main() -> None:
    """Run the steps."""
    library, kind = Path(sys.argv[1]), sys.argv[2]
    if kind == "stores":
        bound = [
            planner.bind(made, store_feeds())
            for made in (
                plain(stores(store=False)),
                session(stores(store=True), library=library),
            )
        ]
        wrong = 0
        for seed in range(STEPS):
            x = {"x": chain_feeds(64, seed=seed)["x"]}
            reference, stored = (
                [a.tobytes() for a in (*each.step(x).values(), *each.values().values())]
                for each in bound
            )
            wrong += reference != stored
    else:
        reference = plain(chain(swaps=False))
        swapped = session(chain(keeps_x=kind == "chain"), library=library)
        feeds = [chain_feeds(seed=seed) for seed in range(STEPS)]
        wrong = sum(bits(swapped, each) != bits(reference, each) for each in feeds)
    print(wrong, flush=True)
    os._exit(0)  # a mutant's copies may still be under way


if __name__ == "__main__":
    main()

"""The long run: `python -m tests.fuzz --minutes 30`, or the case of one seed: `--seed 123`."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from tests.fuzz.campaign import check_seed, run_campaign


def main() -> int:
    """Run; the exit status says whether every property held."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, help="how long")
    parser.add_argument("--graphs", type=int, help="how many")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--seed", type=int, help="only this one, its findings in full")
    parser.add_argument("--workers", type=int, default=2, help="processes at a time")
    parser.add_argument("--keep", type=Path, help="folder for the files of cases with findings")
    parser.add_argument("--worker", type=int, nargs=2, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.worker:
        for seed in range(*asked.worker):
            print(json.dumps(check_seed(seed, keep=asked.keep)), flush=True)
        return 0
    if asked.seed is not None:
        found = check_seed(asked.seed, keep=asked.keep)
        print(json.dumps(found, indent=1))
        return int(bool(found["findings"]))
    if asked.minutes is None and asked.graphs is None:
        parser.error("give --minutes, --graphs or --seed")

    def progress(text: str) -> None:
        if sys.stderr.isatty():
            print(f"\r{text}", end="", file=sys.stderr, flush=True)

    done = run_campaign(
        first_seed=asked.first,
        graphs=asked.graphs,
        minutes=asked.minutes,
        workers=asked.workers,
        keep=asked.keep,
        progress=progress,
    )
    print(f"{done.graphs} graphs, {dict(done.counts)}")
    for text, count in done.refusals.most_common():
        print(f"refused {count}: {text}")
    for seed, name, details in sorted(done.findings):
        print(f"seed {seed}: {name}: {details}")
    return int(bool(done.findings))


if __name__ == "__main__":
    sys.exit(main())

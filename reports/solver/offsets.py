"""Measure offset assignment on the instances published with MiniMalloc.

    python -m reports.solver.offsets FOLDER          the folder of NAME.CAPACITY.csv files

Columns of a file: id, lower and upper (a half-open interval of time), size (bytes). They are
`benchmarks/challenging` of https://github.com/google/minimalloc (Moffitt, "MiniMalloc", ASPLOS 2023).
Rows go to `reports/solver/offsets.json`; every packing is checked by `check_packing`.
"""

from __future__ import annotations

import argparse
import csv
import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from planner.pack.depth_first import COMPILATION
from planner.pack.pack import Buffer, check_packing, pack

Row = dict[str, Any]

_INTRO = """## Offsets

MiniMalloc's challenging instances (Moffitt, ASPLOS 2023), packed into their capacity by
`planner.pack.pack` (numba and numpy), one thread; the search was compiled beforehand, which
takes seconds once on a machine. *contention* and *height*: the largest sum of live bytes, and the
packing's size, over the capacity. *seconds*: median of {runs} runs with different seeds, and each of
them; *engine*: of each. A run that did not get within the capacity in {limit_s:g} s says "none".
"""


def read(path: Path) -> list[Buffer]:
    """The buffers of one CSV file."""
    with path.open(newline="", encoding="utf-8") as file:
        return [
            Buffer(start=int(row["lower"]), end=int(row["upper"]), size_bytes=int(row["size"]))
            for row in csv.DictReader(file)
        ]


def measure(path: Path, *, runs: int, limit_s: float) -> Row:
    """Pack one instance `runs` times, with seeds 0, 1, ..."""
    name, capacity = path.name.split(".")[0], int(path.name.split(".")[1])
    buffers = read(path)
    packings = [
        pack(buffers, capacity_bytes=capacity, time_limit_s=limit_s, seed=seed)
        for seed in range(runs)
    ]
    for packing in packings:
        check_packing(buffers, packing)
    return {
        "instance": name,
        "buffers": len(buffers),
        "capacity_bytes": capacity,
        "contention_bytes": packings[0].bound_bytes,
        "height_bytes": min(p.height_bytes for p in packings),
        "packed": all(p.fits for p in packings),
        "fits": [p.fits for p in packings],
        "engines": [p.engine for p in packings],
        "run_seconds": [round(p.seconds, 2) for p in packings],
        "seconds": round(statistics.median(p.seconds for p in packings), 2),
        "limit_s": limit_s,
    }


def markdown(rows: Sequence[Row]) -> str:
    """The section of `reports/solver.md`."""
    lines = [
        _INTRO.format(runs=len(rows[0]["engines"]), limit_s=rows[0]["limit_s"]),
        "| instance | buffers | contention | height | packed | seconds | of the runs | engines |",
        "|---|---:|---:|---:|---|---:|---|---|",
    ]
    for row in rows:
        capacity = row["capacity_bytes"]
        said = [
            f"{seconds:.2f}" if fits else "none"
            for seconds, fits in zip(row["run_seconds"], row["fits"], strict=True)
        ]
        engines = [e for e, fits in zip(row["engines"], row["fits"], strict=True) if fits]
        lines.append(
            f"| {row['instance']} | {row['buffers']} | {row['contention_bytes'] / capacity:.1%} "
            f"| {row['height_bytes'] / capacity:.1%} | {sum(row['fits'])} of {len(row['fits'])} "
            f"| {row['seconds']:.2f} | {', '.join(said)} | {', '.join(dict.fromkeys(engines))} |"
        )
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure every instance of a folder, and print the table."""
    parser = argparse.ArgumentParser(
        prog="python -m reports.solver.offsets",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("folder", type=Path, help="of NAME.CAPACITY.csv files")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--limit", type=float, default=120.0, metavar="SECONDS")
    parser.add_argument("--output", type=Path, default=Path(__file__).with_suffix(".json"))
    options = parser.parse_args(arguments)
    paths = sorted(options.folder.glob("*.*.csv"))
    if not paths:
        parser.error(f"no NAME.CAPACITY.csv in {options.folder}")
    COMPILATION.warm_up()
    rows = []
    for path in paths:
        rows.append(measure(path, runs=options.runs, limit_s=options.limit))
        options.output.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    print(markdown(rows), end="")


if __name__ == "__main__":
    main()

"""The least budget that can be met: how near the plans found come to the proven bound.

    python -m reports.solver.least [--instances FOLDER] [--limit SECONDS] [--params FILE.toml]
                                   [MODEL.onnx ...]

For the training graphs of `models/zoo` (or those named): with copies to the host and in the order that
`planner.order.min_peak` finds, where the bound holds over all orders; and with recompute only in the
best base order known, where it holds for that order. For the published instances in FOLDER
(`reports.solver.moccasin`; training graphs): recompute only, in their own order. Every plan is replayed
by the simulator. Of a file of parameters (`planner.portfolio.params`) only the table `least-peak` has an
effect. Rows go to `least.json` beside this file, or in --folder.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from planner.order.min_peak import min_peak_order
from planner.order.reorder import peak_of, reorder
from planner.plan.problem import Problem
from planner.portfolio.min_peak import min_peak
from planner.portfolio.params import read_params
from planner.portfolio.policies import LeastPeakPolicy
from planner.portfolio.table import POLICY
from planner.simulate.simulate import simulate
from reports.shared import program, write_rows
from reports.solver.moccasin import read, read_folder, short_name
from reports.solver.real import ZOO, real

_NAME = "least.json"


def measure(
    problem: Problem, *, limit_s: float, policy: LeastPeakPolicy = POLICY.least_peak
) -> dict[str, Any]:
    """Figures of one problem: bytes, seconds, and the plan's runs and time as ratios of the base
    order's.

    Raises:
        AssertionError: the simulator's peak is not the one claimed.
    """
    start = time.monotonic()
    found, bound = min_peak(problem, time_limit_s=limit_s, policy=policy)
    seconds = time.monotonic() - start
    replay = simulate(problem, found.actions)
    if replay.peak_bytes != found.peak_bytes:
        raise AssertionError(f"{problem.name}: {replay.peak_bytes}, not {found.peak_bytes}")
    return {
        "ops": len(problem.ops),
        "base_peak_bytes": peak_of(problem, range(len(problem.ops))),
        "bound_bytes": bound,
        "found_bytes": found.peak_bytes,
        "over_bound": found.peak_bytes / bound - 1,
        "added_time": replay.time_us / problem.base_duration_us - 1,
        "recomputed_ops": replay.recomputed_ops,
        "seconds": round(seconds, 2),
    }


def problems_of(models: Sequence[Path], instances: Path | None) -> Iterator[tuple[str, Problem]]:
    """Yield each problem, with the plans that its bound covers."""
    for model in models:
        problem = replace(real(model), overlap=False)
        order, _ = min_peak_order(problem, range(len(problem.ops)))
        yield "swaps, any order", replace(reorder(problem, order), name=problem.name)
        yield "recompute, this order", problem.without_swaps()
    if instances is not None:
        for name, path in read_folder(instances).items():
            if "_test" in name:
                continue
            problem = replace(read(path).problem, name=short_name(name))
            yield "recompute, this order", problem.without_swaps()


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, and write each row at once."""
    parser = program("reports.solver.least", __doc__)
    parser.add_argument("models", nargs="*", type=Path)
    parser.add_argument("--instances", type=Path, metavar="FOLDER")
    parser.add_argument("--limit", type=float, default=20.0, metavar="SECONDS")
    parser.add_argument("--params", type=Path, metavar="FILE.toml", help="its table least-peak")
    parser.add_argument("--folder", type=Path, default=Path(__file__).parent)
    options = parser.parse_args(arguments)
    policy = POLICY if options.params is None else read_params(options.params)
    models = options.models or sorted(ZOO.glob("*.onnx"))
    rows: list[dict[str, Any]] = []
    for plans, problem in problems_of(models, options.instances):
        figures = measure(problem, limit_s=options.limit, policy=policy.least_peak)
        rows.append({"name": problem.name, "plans": plans, "limit_s": options.limit, **figures})
        write_rows(options.folder / _NAME, rows)
        print(
            *(f"{value:.4g}" if isinstance(value, float) else value for value in rows[-1].values())
        )


if __name__ == "__main__":
    main()

"""The public function `sweep`: many budgets, and perhaps several sizes, at once."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from planner import clock
from planner.bounding import Given, bounds_of
from planner.defaults import meant
from planner.errors import UsageError
from planner.files.writing import FileName, path_or_none
from planner.formulate import NO_LIMIT
from planner.onnxio.dims import dim_called
from planner.pipeline.answer.sweep import Graphs, even_budgets, frontiers, graphs_of, largest
from planner.pipeline.levers.residence import residence_note
from planner.pipeline.levers.ways import merged, ways_of
from planner.pipeline.prepare.copies import Copies
from planner.pipeline.prepare.prepared import BOUND_SIZES, prepare, silent
from planner.pipeline.prepare.settings import noted_copies, settings_of
from planner.plan.planfile import Swap
from planner.portfolio.params import read_params
from planner.portfolio.table import POLICY
from planner.processes.garbage import collected_seldom
from planner.request import Costs, Levers, Limits, Request, calibration, settled
from planner.residing import Feeds, Reside, check_residence
from planner.results import Sweep
from planner.targets import Device
from planner.units import parse_budget

MAX_POINTS = 1_000


@clock.as_asked
@collected_seldom()
def sweep(
    model: FileName,
    *,
    budgets: Sequence[str] = (),
    points: int = 12,
    dims: Mapping[str, Sequence[int]] | None = None,
    bounds: Mapping[str, Given] | None = None,
    hardware: str = "cpu",
    profile: FileName | None = None,
    calibrate: bool | None = None,
    swap: Swap | None = None,
    copies: Copies = "serial",
    resident: Reside | None = None,
    feeds: Feeds = "auto",
    reserve: str = "0B",
    time_limit_s: float = 120.0,
    seed: int = 0,
    reproducible: bool = False,
    jobs: int | None = None,
    ray_address: str | None = None,
    ort_optimize: bool = True,
    device: Device | None = None,
    inputs: FileName | None = None,
    params: FileName | None = None,
    progress: Callable[[str], None] | None = None,
) -> Sweep:
    """What each budget costs in time, and the largest size that fits each.

    Args:
        budgets: as for `optimize`; a percentage is of the peak at the largest size. None asks for
            `points` budgets, from the least that may be possible to the largest size's own peak.
        dims: sizes of open dims, by name or by place, as for `analyze`; one of them may have several.
        bounds: of sizes that depend on data, as for `optimize`.
        swap, copies, resident, feeds: as for `optimize`; at each budget what lives on the host is as
            much as costs nothing, or all that may.
        device: whose graph and kernels are looked at; None for the CPU's, with the times of any profile.
        time_limit_s: for all points together.
        reproducible: as for `optimize`; points are solved one after the other.
        jobs, ray_address: see `planner.pipeline.answer.sweep.frontiers`.
        params: the numbers of the search's policy, as `planner solve --print-params` prints them; its
            table `least-peak` changes nothing here.

    Raises:
        UsageError, ModelError: see `planner.errors`.
    """
    start = clock.now()
    report = progress or silent
    check_residence(resident, feeds)
    if reproducible:
        calibrate, jobs = settled(calibrate, jobs, elsewhere=ray_address)
    policy = POLICY if params is None else read_params(Path(params))
    said = meant(
        device=device,
        hardware=hardware,
        swap=swap,
        resident=resident,
        copies=copies,
        is_written=False,
    )
    request = Request(
        model=Path(model),
        bounds=bounds_of(bounds or {}),
        device=said.device,
        ort_optimize=ort_optimize,
        inputs=path_or_none(inputs),
        seed=seed,
        costs=Costs(
            hardware=hardware, profile=path_or_none(profile), calibrate=calibration(calibrate)
        ),
        reserve=reserve,
        levers=Levers(swap=said.swap, copies=copies, resident=said.resident, feeds=feeds),
        limits=Limits(time_limit_s=time_limit_s),
    )
    sizes = {name: sorted(set(values)) for name, values in (dims or {}).items()}
    several = [name for name, values in sizes.items() if len(values) > 1]
    if len(several) > 1:
        raise UsageError(f"only one dim may have several sizes, not {' and '.join(several)}")
    count = (len(budgets) or points) * (len(sizes[several[0]]) if several else 1)
    if count > MAX_POINTS:
        raise UsageError(f"{count} points are too many; {MAX_POINTS} at most")
    swept = several[0] if several else next(iter(sizes), "")
    graphs: list[Graphs] = []
    sizes_of: list[int] = []
    overlap = False
    assumptions: dict[str, None] = {}
    for number, size in enumerate(sizes.get(swept, [0])):
        bound = {name: values[0] for name, values in sizes.items()}
        if several:
            report(f"{swept} = {size}")
            bound[swept] = size
        prepared = prepare(replace(request, dims=bound), progress=report, to_rewrite=False)
        settings = settings_of(prepared, budget_bytes=NO_LIMIT)
        overlap = settings.overlap
        report("searching for base orders")
        ways = ways_of(prepared, settings)
        graphs += [graphs_of(way, settings, policy.frontier) for way in ways]
        sizes_of += [number] * len(ways)
        notes = [note for way in ways for note in residence_note(way)]
        noted = (*prepared.graph.assumptions, *noted_copies(prepared, settings), *notes)
        assumptions |= dict.fromkeys(a for a in noted if not a.startswith(BOUND_SIZES))
    whole = max(g.baseline_bytes for g in graphs)
    asked = [parse_budget(text, baseline_bytes=whole) for text in budgets]
    if not asked:
        asked = even_budgets(graphs, points)
    asked = sorted(set(asked))
    found = frontiers(
        graphs, asked, jobs=jobs, ray_address=ray_address, progress=report, policy=policy
    )
    by_size = itertools.groupby(zip(sizes_of, found, strict=True), key=lambda pair: pair[0])
    found = tuple(merged([frontier for _, frontier in ways]) for _, ways in by_size)
    first = graphs[0].prepared
    dim = (
        str(dim_called(first.loaded.model, swept)) if several else next(iter(first.loaded.dims), "")
    )
    return Sweep(
        model_path=Path(model),
        model_sha256=first.loaded.sha256,
        hardware=first.hardware.name,
        cost_source=first.cost_source,
        swap_mode=said.swap,
        copies="overlapped" if overlap else "serial",
        resident=request.levers.residence,
        seed=seed,
        seconds=clock.now() - start,
        dim=dim,
        frontiers=found,
        largest=largest(found, dim, asked) if several else (),
        assumptions=tuple(assumptions),
    )

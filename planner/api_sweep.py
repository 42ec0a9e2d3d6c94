"""The public function `sweep`: many budgets, and perhaps several sizes, at once."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from planner import clock
from planner.choices import HOST_PROFILE, Copies, Feeds, Reside, Swap
from planner.defaults import requested
from planner.errors import UsageError
from planner.files.writing import FileName
from planner.formulate import NO_LIMIT
from planner.onnxio.dims import dim_called
from planner.pipeline.answer.budgets.frontier import FrontierWay, merged, way_of
from planner.pipeline.answer.budgets.sweep import even_budgets, frontiers, largest
from planner.pipeline.levers.host.hosting import ways_of
from planner.pipeline.levers.host.residence import residence_note
from planner.pipeline.prepare.prepared import BOUND_SIZES, prepare, silent
from planner.pipeline.prepare.settings import noted_copies, settings_of
from planner.portfolio.params import read_params
from planner.portfolio.table import POLICY, Policy
from planner.processes.garbage import collected_seldom
from planner.request import Request, options_of
from planner.request.asking import documented
from planner.request.bounding import Given
from planner.results import Frontier, Sweep
from planner.targets import Device
from planner.units import parse_budget

POINTS = 12
MAX_POINTS = 1_000


@documented(options_of("sweep"))
@collected_seldom()
def sweep(
    model: FileName,
    *,
    budgets: Sequence[str] = (),
    points: int | None = None,
    dims: Mapping[str, Sequence[int]] | None = None,
    bounds: Mapping[str, Given] | None = None,
    hardware: str = HOST_PROFILE,
    profile: FileName | None = None,
    calibrate: bool | None = None,
    swap: Swap | None = None,
    copies: Copies | None = None,
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
    """Show what each budget costs in time, and the largest size that fits each.

    Args:
        model: an .onnx file.
        budgets: as for `optimize`; a percentage is of the peak at the largest size.
        points: number of budgets, if none are named: from the least that may be possible to the
            largest size's own peak; None for 12.
        jobs, ray_address: see `planner.pipeline.answer.budgets.sweep.frontiers`.
        params: parameters of the search, in the format of `planner solve --print-params`.
        progress: called with the name of each stage.

    Raises:
        UsageError, ModelError: see `planner.errors`.
    """
    request = requested("sweep", locals())
    if budgets and points is not None:
        raise UsageError("--points spreads budgets evenly, and --budgets names them: give one")
    policy = POLICY if params is None else read_params(Path(params))
    report = progress or silent
    with clock.counting(is_capped=not reproducible):
        start = clock.now()
        clock.cap(time_limit_s)
        swept, sizes = _swept(dims or {}, len(budgets) or points or POINTS)
        read = _read(request, swept, sizes, policy, report)
        whole = max(way.baseline_bytes for way in read.ways)
        asked = [parse_budget(text, baseline_bytes=whole) for text in budgets]
        asked = sorted(set(asked or even_budgets(read.ways, points or POINTS)))
        jobs = 1 if reproducible else jobs
        solved = frontiers(read.ways, asked, jobs=jobs, ray_address=ray_address, progress=report)
        found = _found(request, read, solved, swept if len(sizes.get(swept, ())) > 1 else "", asked)
        return replace(found, seconds=clock.now() - start)


def _found(
    request: Request,
    read: _Read,
    solved: Sequence[Frontier],
    swept: str,
    asked: Sequence[int],
) -> Sweep:
    """Assemble the sweep's result; `seconds` stays 0.

    Args:
        solved: a frontier for each way of `read`.
        swept: the dim with several sizes; "" for none.
        asked: the budgets, in bytes.
    """
    numbered = zip(read.numbers, solved, strict=True)
    by_size = itertools.groupby(numbered, key=lambda pair: pair[0])
    found = tuple(merged([frontier for _, frontier in ways]) for _, ways in by_size)
    first = read.ways[0].prepared
    names = (str(dim_called(first.loaded.model, swept)),) if swept else first.loaded.dims
    dim = next(iter(names), "")
    return Sweep(
        model_path=request.model,
        model_sha256=first.loaded.sha256,
        hardware=first.hardware.name,
        cost_source=first.cost_source,
        swap_mode=request.levers.swap,
        copies="overlapped" if read.overlap else "serial",
        resident=request.levers.residence,
        seed=request.seed,
        seconds=0.0,
        dim=dim,
        frontiers=found,
        largest=largest(found, dim, asked) if swept else (),
        assumptions=read.assumptions,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Read:
    """The model, prepared at all sizes.

    Attributes:
        ways: the ways to run each size, size by size.
        numbers: the index of each way's size.
        overlap: whether copies run beside the operations.
    """

    ways: list[FrontierWay]
    numbers: list[int]
    overlap: bool
    assumptions: tuple[str, ...]


def _swept(
    dims: Mapping[str, Sequence[int]], points: int
) -> tuple[str, Mapping[str, Sequence[int]]]:
    """Return the dim with several sizes, else the first dim or "", and each dim's sorted sizes.

    Raises:
        UsageError: several dims have several sizes, or there are too many points.
    """
    sizes = {name: sorted(set(values)) for name, values in dims.items()}
    several = [name for name, values in sizes.items() if len(values) > 1]
    if len(several) > 1:
        raise UsageError(f"only one dim may have several sizes, not {' and '.join(several)}")
    count = points * (len(sizes[several[0]]) if several else 1)
    if count > MAX_POINTS:
        raise UsageError(f"{count} points are too many; {MAX_POINTS} at most")
    return (several[0] if several else next(iter(sizes), "")), sizes


def _read(
    request: Request,
    swept: str,
    sizes: Mapping[str, Sequence[int]],
    policy: Policy,
    report: Callable[[str], None],
) -> _Read:
    """Prepare the model at each size."""
    found: list[FrontierWay] = []
    numbers: list[int] = []
    overlap = False
    assumptions: dict[str, None] = {}
    for number, size in enumerate(sizes.get(swept, [0])):
        bound = {name: values[0] for name, values in sizes.items()}
        if len(sizes.get(swept, ())) > 1:
            report(f"{swept} = {size}")
            bound[swept] = size
        prepared = prepare(replace(request, dims=bound), progress=report, to_rewrite=False)
        settings = settings_of(prepared, budget_bytes=NO_LIMIT)
        overlap = settings.overlap
        report("searching for base orders")
        ways = ways_of(prepared, settings)
        found += [way_of(way, settings, policy) for way in ways]
        numbers += [number] * len(ways)
        notes = [note for way in ways for note in residence_note(way)]
        noted = (*prepared.graph.assumptions, *noted_copies(prepared, settings), *notes)
        assumptions |= dict.fromkeys(a for a in noted if not a.startswith(BOUND_SIZES))
    return _Read(ways=found, numbers=numbers, overlap=overlap, assumptions=tuple(assumptions))

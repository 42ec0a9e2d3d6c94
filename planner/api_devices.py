"""The public function `fit_devices`: which devices hold a model, at which size, and at what price."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import msgspec

from planner import clock
from planner.choices import Feeds
from planner.cost.hardware import Hardware, hardware_names, load_hardware
from planner.defaults import requested, set_aside
from planner.errors import UsageError
from planner.files.writing import FileName
from planner.onnxio.dims import dim_called
from planner.pipeline.answer.budgets.devices import Device, Finder, fits_of, searches_of
from planner.pipeline.answer.budgets.sharding import sharded
from planner.pipeline.prepare.prepared import BOUND_SIZES, silent
from planner.processes.garbage import collected_seldom
from planner.report.document.fit import TERMS, FitDocument, device_row
from planner.report.document.views import composition_at_peak
from planner.request import AUTO_RESERVE, Costs, Request, options_of
from planner.request.asking import documented
from planner.request.bounding import Given

ALL = "all"

MAX_DEVICES = 64
MAX_SIZES = 1_000


@documented(options_of("fit"))
@collected_seldom()
def fit_devices(
    model: FileName,
    hardware: Sequence[str],
    *,
    dims: Mapping[str, Sequence[int]] | None = None,
    bounds: Mapping[str, Given] | None = None,
    reserve: str = AUTO_RESERVE,
    feeds: Feeds = "auto",
    time_limit_s: float = 120.0,
    seed: int = 0,
    reproducible: bool = False,
    ort_optimize: bool = True,
    inputs: FileName | None = None,
    progress: Callable[[str], None] | None = None,
) -> FitDocument:
    """Show which devices hold a model, with which levers, at which size, and at what price in time.

    Nothing is run on any of the devices: bytes are those of live tensors and of kernels' workspace as
    ONNX Runtime's CPU provider has it, and times are the rooflines of the profiles.

    Args:
        model: an .onnx file.
        hardware: names of shipped profiles, or TOML files; "all" for every shipped profile of a device
            with a memory of its own.
        progress: told of each stage.

    Returns:
        A row for each device, as asked, and in it one for each way to fit. What fits with copies is never
        slower than what fits without; copies that overlap were not run on a card yet
        (`planner.pipeline.prepare.settings`).

    Raises:
        UsageError: no hardware, an unknown profile, a reserve that takes a whole memory, a dim that the
            model does not have, several dims with several sizes.
        ModelError: see `planner.errors`.
    """
    request = requested("fit", locals())
    with clock.counting(is_capped=not reproducible):
        start = clock.now()
        clock.cap(time_limit_s)
        profiles = profiles_of(hardware)
        kept = [set_aside(found, reserve) for _, found in profiles]
        dim, sizes = _sizes(dims or {})
        finder = _finder(request, profiles, kept, dim, sizes, progress or silent)
        found = _document(finder, dim, sizes.get(dim, [0]), reserve=reserve)
        return msgspec.structs.replace(found, seconds=clock.now() - start).named(request.model)


def _document(finder: Finder, dim: str, asked: Sequence[int], *, reserve: str) -> FitDocument:
    """Build the document with a row for each device; `seconds` stays 0.

    Args:
        dim: the dim with several sizes; "" for none.
        asked: the sizes of `dim`; [0] for none.
    """
    ascending = sorted(finder.devices, key=lambda device: device.budget_bytes)
    ways = {device.name: fits_of(finder, device, asked) for device in ascending}
    size = asked[0] if asked else 1
    least, first = finder.least_peaks(size), finder.prepared(size)
    called = str(dim_called(first.loaded.model, dim)) if dim else ""
    devices = tuple(
        device_row(d.name, d.hardware, d.budget_bytes, ways[d.name], called, least)
        for d in finder.devices
    )
    assumptions = (a for a in finder.assumptions(size) if not a.startswith(BOUND_SIZES))
    return FitDocument(
        model_sha256=first.loaded.sha256,
        dims={name: size for name, size in first.loaded.dims.items() if name != called},
        dim=called or None,
        sizes=finder.sizes if dim else (),
        devices=devices,
        all_fit=all(device.fits for device in devices),
        least=least,
        composition_at_peak=composition_at_peak(first.baseline.view),
        sharded=sharded(first.baseline),
        reserve=reserve,
        seed=finder.request.seed,
        seconds=0.0,
        assumptions=(*TERMS, *assumptions),
    )


def _sizes(dims: Mapping[str, Sequence[int]]) -> tuple[str, dict[str, list[int]]]:
    """Return the dim with several sizes or none ("" where each dim has one size), and each dim's sorted
    sizes.

    Raises:
        UsageError: several dims have several sizes, or one has too many.
    """
    sizes = {name: sorted(set(values)) for name, values in dims.items()}
    several = [name for name, values in sizes.items() if len(values) != 1]
    if len(several) > 1:
        raise UsageError(f"only one dim may have several sizes, not {' and '.join(several)}")
    dim = several[0] if several else ""
    if len(sizes.get(dim, ())) > MAX_SIZES:
        raise UsageError(f"{len(sizes[dim])} sizes of {dim} are too many; {MAX_SIZES} at most")
    return dim, sizes


def _finder(
    request: Request,
    profiles: Sequence[tuple[str, Hardware]],
    kept: Sequence[int],
    dim: str,
    sizes: Mapping[str, Sequence[int]],
    report: Callable[[str], None],
) -> Finder:
    """Build the search for the largest size on each device.

    Args:
        kept: bytes of each device's memory that plans may not use.
    """
    devices = [
        Device(hardware=found, name=name, budget_bytes=found.memory_bytes - aside)
        for (name, found), aside in zip(profiles, kept, strict=True)
    ]
    return Finder(
        request=replace(
            request,
            dims={name: values[0] for name, values in sizes.items() if name != dim},
            reserve="0B",
            costs=Costs(hardware=profiles[0][0], calibrate="never"),
            levers=replace(request.levers, resident="auto"),
        ),
        devices=devices,
        dim=dim,
        searches=searches_of(len(devices), bool(dim)),
        progress=report,
    )


def profiles_of(names: Sequence[str]) -> list[tuple[str, Hardware]]:
    """Load the named hardware profiles, each once, in the given order.

    Raises:
        UsageError: no profile is named, too many are, or one is unknown.
    """
    wanted: dict[str, Hardware] = {}
    for name in names:
        if not str(name).strip():
            raise UsageError(
                "--hardware has an empty name in it; give profiles as h100,a100-80gb or all"
            )
        if str(name) == ALL:
            known = {each: load_hardware(each) for each in hardware_names()}
            wanted |= {each: found for each, found in known.items() if not found.is_host}
        else:
            wanted[str(name)] = load_hardware(name)
        if len(wanted) > MAX_DEVICES:
            raise UsageError(f"--hardware names more than {MAX_DEVICES} profiles")
    if not wanted:
        raise UsageError(
            f"name the devices, as in --hardware h100,a100-80gb or --hardware {ALL}; profiles: "
            f"{', '.join(hardware_names())}, or a .toml file"
        )
    return list(wanted.items())

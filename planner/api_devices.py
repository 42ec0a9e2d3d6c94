"""The public function `fit_devices`: which devices hold a model, at which size, and at what price."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from planner import clock
from planner.bounding import Given, bounds_of
from planner.cost.hardware import Hardware, hardware_names, load_hardware
from planner.defaults import AUTO_RESERVE, set_aside
from planner.device_fits import DeviceFit, DeviceFits
from planner.errors import UsageError
from planner.files.writing import FileName, path_or_none
from planner.onnxio.dims import dim_called
from planner.pipeline.answer.devices import Device, Finder, fits_of, searches_of
from planner.pipeline.answer.sharding import sharded
from planner.pipeline.prepare.prepared import BOUND_SIZES, silent
from planner.processes.garbage import collected_seldom
from planner.request import Costs, Levers, Limits, Request
from planner.residing import Feeds, check_residence
from planner.units import check_seed, check_time_limit, parse_bytes, parse_percent

ALL = "all"

MAX_DEVICES = 64
MAX_SIZES = 1_000


@clock.as_asked
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
) -> DeviceFits:
    """Which devices hold a model, with which levers, at which size, and at what price in time.

    Nothing is run on any of the devices: bytes are those of live tensors and of kernels' workspace as
    ONNX Runtime's CPU provider has it, and times are the rooflines of the profiles.

    Args:
        hardware: names of shipped profiles, or TOML files; "all" for every shipped profile of a device
            with a memory of its own.
        dims: sizes of open dims, by name or by place, as for `analyze`. One of them may have several, of
            which the largest that fits is looked for (it is taken that what is smaller than one that
            fits, fits), or none: then sizes double from 1 on.
        bounds, feeds, inputs, ort_optimize: as for `planner.optimize`.
        reserve: of each device's memory, for what no plan has: the driver's context and libraries. A size
            (`"2GB"`), a share (`"5%"`), or "auto", as `optimize` sets aside where no budget is given
            (`planner.defaults.set_aside`).
        time_limit_s: for all searches together.
        reproducible: as for `optimize`.

    Returns:
        A row for each device, as asked, and in it one for each way to fit. What fits with copies is never
        slower than what fits without; copies that overlap were not run on a card yet
        (`planner.pipeline.prepare.copies`).

    Raises:
        UsageError: no hardware, an unknown profile, a reserve that takes a whole memory, a dim that the
            model does not have, several dims with several sizes.
        ModelError: see `planner.errors`.
    """
    start = clock.now()
    report = progress or silent
    check_time_limit(time_limit_s)
    check_seed(seed)
    check_residence("auto", feeds)
    profiles = profiles_of(hardware)
    reserves = [set_aside(found, reserve) for _, found in profiles]
    sizes = {name: sorted(set(values)) for name, values in (dims or {}).items()}
    several = [name for name, values in sizes.items() if len(values) != 1]
    if len(several) > 1:
        raise UsageError(f"only one dim may have several sizes, not {' and '.join(several)}")
    dim = several[0] if several else ""
    if len(sizes.get(dim, ())) > MAX_SIZES:
        raise UsageError(f"{len(sizes[dim])} sizes of {dim} are too many; {MAX_SIZES} at most")
    devices = [
        Device(hardware=found, name=name, budget_bytes=found.memory_bytes - kept)
        for (name, found), kept in zip(profiles, reserves, strict=True)
    ]
    request = Request(
        model=Path(model),
        dims={name: values[0] for name, values in sizes.items() if name != dim},
        bounds=bounds_of(bounds or {}),
        ort_optimize=ort_optimize,
        inputs=path_or_none(inputs),
        seed=seed,
        costs=Costs(hardware=profiles[0][0], calibrate="never"),
        levers=Levers(resident="auto", feeds=feeds),
        limits=Limits(time_limit_s=time_limit_s),
    )
    finder = Finder(
        request=request,
        devices=devices,
        dim=dim,
        searches=searches_of(len(devices), bool(dim)),
        progress=report,
    )
    asked = sizes[dim] if dim else [0]
    rows = tuple(
        DeviceFit(
            hardware=device.name,
            title=device.hardware.title,
            memory_bytes=device.hardware.memory_bytes,
            reserve_bytes=kept,
            ways=fits_of(finder, device, asked),
        )
        for device, kept in zip(devices, reserves, strict=True)
    )
    least_size = asked[0] if asked else 1
    least_peak, least_on_host = finder.least_peaks(least_size)
    first = finder.prepared(least_size)
    called = str(dim_called(first.loaded.model, dim)) if dim else ""
    return DeviceFits(
        model_path=Path(model),
        model_sha256=first.loaded.sha256,
        dims={name: size for name, size in first.loaded.dims.items() if name != called},
        dim=called,
        sizes=finder.sizes if dim else (),
        devices=rows,
        least_size=least_size if dim else 0,
        least_peak=least_peak,
        least_on_host=least_on_host,
        sharded=sharded(first.baseline),
        reserve=reserve,
        seed=seed,
        seconds=clock.now() - start,
        assumptions=tuple(
            text for text in finder.assumptions(least_size) if not text.startswith(BOUND_SIZES)
        ),
    )


def profiles_of(names: Sequence[str]) -> list[tuple[str, Hardware]]:
    """The profiles by name, each once, in the order asked.

    Raises:
        UsageError: none is named, too many are, or one is unknown.
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
            f"say which devices, as --hardware h100,a100-80gb or --hardware {ALL}; profiles: "
            f"{', '.join(hardware_names())}, or a .toml file"
        )
    return list(wanted.items())


def check_reserve(text: str) -> None:
    """Raise UsageError where `text` can never be a reserve, before anything is read."""
    if text != AUTO_RESERVE and parse_percent(text) is None:
        parse_bytes(text, what="--reserve", zero_ok=True)

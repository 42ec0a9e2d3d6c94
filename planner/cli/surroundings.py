"""Inspect this machine: packages, providers and their devices, caches, memory.

Every answer comes from a trial: a provider counts where a session on it computed, in a process of its
own; a package where it can be imported. Nothing is written, except where a disk is measured.
"""

from __future__ import annotations

import importlib
import os
import platform
import shutil
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from importlib import metadata, util
from pathlib import Path

from planner.disk import Disk, measured
from planner.errors import UsageError
from planner.native import library, library_path
from planner.targets import HOST, TARGETS, Target, devices

RUNTIMES = (
    "onnxruntime",
    "onnxruntime-gpu",
    "onnxruntime-training",
    "onnxruntime-training-cpu",
    "onnxruntime-directml",
    "onnxruntime-openvino",
)
"""Wheels that are all imported as `onnxruntime`: only one of them may be installed."""

REQUIRED = {
    "numpy": "numpy",
    "onnx": "onnx",
    "onnx-ir": "onnx_ir",
    "onnx-shape-inference": "onnx_shape_inference",
    "ortools": "ortools.sat.python.cp_model",
    "networkx": "networkx",
    "msgspec": "msgspec",
}
"""The distributions that planning needs, and the module of each that must import."""

OPTIONAL = (
    ("torch", "torch", "planner export, from PyTorch modules", "onnx-planner[torch]"),
    (
        "onnxscript",
        "onnxscript",
        "planner export of operators without a rule",
        "onnx-planner[torch]",
    ),
    ("transformers", "transformers", "planner fit hf:CONFIG", "onnx-planner[models]"),
    *(
        (row.distribution, row.plugin, f"--device {row.name}", f"onnx-planner[{row.extra}]")
        for row in TARGETS.values()
        if row.plugin
    ),
    ("ray", "ray", "planner sweep --ray", "onnx-planner[ray]"),
)
"""Optional distributions: (distribution, module, what it allows, what to install)."""

BROWSERS = ("chromium", "chromium-browser", "google-chrome")


@dataclass(frozen=True, slots=True, kw_only=True)
class Package:
    """A distribution.

    Attributes:
        version: None where it is missing.
        why_not: why it does not import; "" where it does.
        allows: its purpose; install: the argument for pip. Both are empty for required packages.
    """

    name: str
    version: str | None
    why_not: str = ""
    allows: str = ""
    install: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Provider:
    """An execution provider: whether a session on it computed here, its devices, or why it did not
    run."""

    name: str
    runs: bool
    devices: tuple[str, ...] = ()
    why_not: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """All findings about this machine.

    Attributes:
        available: providers that the installed onnxruntime was built with.
        providers: providers that planner writes models for, each one tried.
        native: the path of planner's native library; None where it is not built.
        browser: the path of a browser for tests and screenshots of the report page; None without one.
        available_bytes: memory that the system could give; None where it does not say.
        cores: number of cores that this process may run on.
        disk: the measured speed of a folder's disk; None where no folder was named.
        problems: reasons why `planner optimize` cannot run here, each with its remedy.
        remarks: surprises that keep nothing from running.
    """

    python: str
    system: str
    runtimes: tuple[Package, ...]
    available: tuple[str, ...]
    required: tuple[Package, ...]
    optional: tuple[Package, ...]
    providers: tuple[Provider, ...]
    native: str | None
    browser: str | None
    available_bytes: int | None
    cores: int
    disk: Disk | None
    problems: tuple[str, ...]
    remarks: tuple[str, ...]


def look_around(
    progress: Callable[[str], None] = lambda _: None, disk: Path | None = None
) -> Surroundings:
    """Find out what works on this machine; takes some seconds.

    Args:
        disk: a folder whose disk is measured.

    Raises:
        UsageError: no file can be made in `disk`.
    """
    from planner.runtime.timing import available_bytes

    if disk is not None:
        progress(f"measuring the disk of {disk}")
    speed = None if disk is None else measured(disk)
    progress("looking at packages")
    runtimes = tuple(
        Package(name=name, version=version) for name in RUNTIMES if (version := _version(name))
    )
    required = tuple(_imported(name, module) for name, module in REQUIRED.items())
    optional = tuple(_optional(*row) for row in OPTIONAL)
    native, why_not_native = _native()
    providers = _providers(progress)
    return Surroundings(
        python=platform.python_version(),
        system=f"{platform.system()} {platform.machine()}",
        runtimes=runtimes,
        available=tuple(_available()),
        required=required,
        optional=optional,
        providers=providers,
        native=native,
        browser=next(filter(None, map(shutil.which, BROWSERS)), None),
        available_bytes=available_bytes(),
        cores=len(os.sched_getaffinity(0)),
        disk=speed,
        problems=tuple(_problems(runtimes, required, providers, why_not_native)),
        remarks=(*_remarks(runtimes), *_fused_remarks(providers, native)),
    )


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _why_not(module: str) -> str:
    """Return why `module` does not import, in a line; "" where it does."""
    try:
        importlib.import_module(module)
    except Exception as error:  # a broken installation may raise anything
        return f"{type(error).__name__}: {' '.join(str(error).split())}"
    return ""


def _imported(name: str, module: str) -> Package:
    return Package(name=name, version=_version(name), why_not=_why_not(module))


def _optional(name: str, module: str, allows: str, install: str) -> Package:
    # torch takes seconds to import: finding it has to suffice
    version = _version(name) if util.find_spec(module) is not None else None
    return Package(name=name, version=version, allows=allows, install=install)


def _native() -> tuple[str | None, str]:
    """Return (the path of the native library or None, why it cannot be used)."""
    try:
        library()
        return str(library_path()), ""
    except UsageError as error:
        return None, str(error)


def _providers(progress: Callable[[str], None]) -> tuple[Provider, ...]:
    """Try the installed providers that planner writes models for; the CPU's comes first."""
    from planner.targets.backend import backend_of

    found: list[Provider] = []
    for target in TARGETS.values():
        if target.everywhere or (target.own_memory and not _is_installed(target)):
            continue
        progress(f"looking for a device of {target.provider}")
        found.append(Provider(name=target.provider, **asdict(backend_of(target).look())))
    return tuple(found)


def _is_installed(target: Target) -> bool:
    from planner.targets.backend import backend_of

    try:
        return backend_of(target).is_installed()
    except Exception:  # onnxruntime does not import: the host's row says why
        return False


def _available() -> list[str]:
    try:
        return list(importlib.import_module("onnxruntime").get_available_providers())
    except Exception:  # the CPU's row says why
        return []


def _problems(
    runtimes: tuple[Package, ...],
    required: tuple[Package, ...],
    providers: tuple[Provider, ...],
    why_not_native: str,
) -> list[str]:
    found = []
    if len(runtimes) > 1:
        names = " and ".join(package.name for package in runtimes)
        found.append(
            f"{names} are imported under one name and overwrite each other: uninstall all of them, "
            'then pip install "onnx-planner[cpu]" (or "onnx-planner[gpu]")'
        )
    if not runtimes and util.find_spec("onnxruntime") is None:
        found.append('onnxruntime is missing: pip install "onnx-planner[cpu]"')
    else:
        found += [
            f"{provider.name} does not run ({provider.why_not}): pip install --force-reinstall "
            f"{runtimes[0].name if runtimes else 'onnxruntime'}"
            for provider in providers[:1]
            if not provider.runs
        ]
    found += [
        f"{package.name} does not import ({package.why_not}): pip install --force-reinstall "
        f"{package.name}"
        for package in required
        if package.why_not
    ]
    if why_not_native:
        found.append(why_not_native)
    return found


def _remarks(runtimes: tuple[Package, ...]) -> list[str]:
    expected = _pinned()
    return [
        f"planner is tested with {expected}, and {package.name} {package.version} is installed"
        for package in runtimes
        if expected and package.name == "onnxruntime" and not _fits(package.version or "", expected)
    ]


def _fused_remarks(providers: tuple[Provider, ...], native: str | None) -> Iterator[str]:
    from planner.targets.backend import backend_of

    runs = {provider.name for provider in providers if provider.runs}
    for target in devices():
        if native and target.provider in runs and (why := backend_of(target).why_not_fused()):
            yield f"--fuse on {target.title}: {why}"


def _pinned() -> str:
    """Return the requirement on onnxruntime of `onnx-planner[cpu]`, from its metadata; "" where
    unknown."""
    try:
        rows = metadata.requires("onnx-planner") or []
    except metadata.PackageNotFoundError:
        return ""
    named = [row for row in rows if row.startswith("onnxruntime")]
    mine = [
        row.partition(";")[0].strip() for row in named if f"'{HOST.extra}'" in row.replace('"', "'")
    ]
    return next(iter(mine), "")


def _fits(version: str, requirement: str) -> bool:
    """Tell whether a version belongs to the series A.B that `>=A.B` in a requirement names."""
    least = requirement.partition(">=")[2].split(",")[0]
    return version.split(".")[:2] == least.split(".")[:2]

"""`planner doctor`: the parts that work here, and those that are missing."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from planner.cli import options as o
from planner.cli.console import emit, progress
from planner.errors import UsageError
from planner.report.plain import printable
from planner.units import counted, format_bytes, format_duration

if TYPE_CHECKING:
    from planner.cli.surroundings import Package, Provider, Surroundings
    from planner.disk import Disk

SCHEMA = "planner.doctor/2"


@o.asks()
def doctor(
    disk: Annotated[
        Path | None,
        typer.Option(
            "--disk",
            metavar="DIR",
            help="Measure how fast swaps to this folder are (planner optimize --disk).",
            show_default=False,
        ),
    ] = None,
    json: o.Json = False,
) -> None:
    """Show what works here: ONNX Runtime and its devices, packages, caches, memory.

    Each provider is tried: it works if a session on it computes. Exits with code 2 if planner optimize
    cannot run, and says what to do.

    \b
    Examples:
      planner doctor
      planner doctor --disk /mnt/nvme
      planner doctor --json
    """
    from planner import __version__
    from planner.cli.surroundings import look_around

    with progress() as report_progress:
        found = look_around(report_progress, disk)
    payload = {"schema": SCHEMA, "planner_version": __version__, **asdict(found)}
    emit(payload, lambda _: print(*map(printable, _lines(found)), sep="\n"), json=json)
    if found.problems:
        raise UsageError("; ".join(found.problems))


def _lines(found: Surroundings) -> list[str]:
    from planner import __version__

    rows = [("planner", f"{__version__}, Python {found.python}, {found.system}")]
    rows += [("ONNX Runtime", f"{p.name} {p.version}") for p in found.runtimes] or [
        ("ONNX Runtime", "missing")
    ]
    rows.append(("  built with", ", ".join(found.available) or "no provider"))
    rows += [(f"  {_short(p)}", _provider(p)) for p in found.providers]
    rows.append(("Packages", ", ".join(map(_package, found.required))))
    rows += [(f"  {p.name}", _optional(p)) for p in found.optional]
    rows.append(
        ("Browser", found.browser or "none: the page's own tests and pictures need chromium")
    )
    rows.append(("Native library", found.native or "missing"))
    memory = "unknown" if found.available_bytes is None else format_bytes(found.available_bytes)
    rows.append(("Memory", f"{memory} free, {counted(found.cores, 'core')}"))
    if found.disk is not None:
        rows.append(("Disk", _disk(found.disk)))
    rows += [("Note", remark) for remark in found.remarks]
    rows += [("Problem", problem) for problem in found.problems]
    if not found.problems:
        rows.append(("Ready", "planner optimize runs here"))
    width = max(len(name) for name, _ in rows) + 2
    return [f"{name:<{width}}{text}" for name, text in rows]


def _disk(disk: Disk) -> str:
    from planner.disk import remark_on

    small = format_duration(disk.latency_us)
    remark = remark_on(disk.kind, disk.folder) or "direct I/O"
    return f"{disk.speeds} in {disk.folder}, {small} for 4 KiB: {remark}"


def _short(provider: Provider) -> str:
    return provider.name.removesuffix("ExecutionProvider")


def _provider(provider: Provider) -> str:
    if not provider.runs:
        return f"does not run: {provider.why_not}"
    return f"runs: {', '.join(provider.devices)}" if provider.devices else "runs"


def _package(package: Package) -> str:
    if package.why_not:
        return f"{package.name} does not import"
    return f"{package.name} {package.version or '?'}"


def _optional(package: Package) -> str:
    if package.version is not None:
        return f"{package.version}, for {package.allows}"
    return f'missing; for {package.allows}: pip install "{package.install}"'

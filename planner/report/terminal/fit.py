"""Print the devices that hold a model."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console

from planner.defaults import AUTO_RESERVE
from planner.report.document.budgets import dims_text
from planner.report.document.fit import HOWS, DeviceRow, FitDocument, Sharded, WayRow
from planner.report.document.views import parts_of
from planner.report.plain import nearby, nearby_command
from planner.report.remarks import that_matter
from planner.report.terminal import (
    phrases,
    print_assumptions,
    print_line,
    print_notes,
    print_row,
    print_table,
    shown,
    wide_console,
)
from planner.units import format_both, format_bytes, format_duration, format_percent

_NAME = 12
_SHOWN = {"copies overlapped": "overlapped"}


def print_fit(
    document: FitDocument, console: Console | None = None, *, in_full: bool = True
) -> None:
    """Print the devices, each with the ways to fit that make a difference.

    Args:
        in_full: whether to print every way, and all assumptions.
    """
    out = console or wide_console()
    dims = f" at {dims_text(document.dims)}" if document.dims else ""
    print_line(out, nearby(document.model) + dims, "bold")
    print_line(out, document.sentence)
    dim = document.dim
    sized = [f">{dim}"] if dim else []
    per_second = f">{dim}/s" if dim else ">steps/s"
    title = f"The largest {dim} that fits" if dim else "Does it fit?"
    print_table(
        out,
        title,
        ["device", ">for a step", "verdict", ">peak", ">step", per_second],
        [_summed_up(device) for device in document.devices],
    )
    if in_full:
        columns = [
            "device", ">for a step", "how", *sized, ">peak", ">as it is", ">step", ">slower",
            per_second, *(["next"] if dim else []),
        ]  # fmt: skip
        rows: list[list[object]] = []
        for device in document.devices:
            rows += _rows(device, bool(dim))
        print_table(out, "Every way to fit", columns, rows)
    out.print()
    print_row(out, "Made of", phrases.made_of(parts_of(document.composition_at_peak)))
    _print_least(out, document)
    if in_full or not document.all_fit:
        print_row(out, "Sharded", _sharded_text(document.sharded))
    print_row(out, "Reserve", _reserve(document.reserve))
    if document.next is not None:
        print_row(out, "Next", nearby_command(document.next), "cyan")
    if in_full:
        print_assumptions(out, document.assumptions)
        return
    assumed = document.assumptions
    print_notes(out, [assumed[0], *that_matter(assumed[2:])])
    print_row(out, "More", "-v has every way to fit and all assumptions")


def _reserve(said: str) -> str:
    if said != AUTO_RESERVE:
        return f"{said} of each memory is left unused"
    return (
        "1 GiB of each memory for driver, context and libraries (measured on an H200 and an H100: "
        "reports/cuda.md), or a tenth where that is less; --reserve for another"
    )


def _name(device: DeviceRow) -> str:
    name = device.hardware
    return name if len(name) <= _NAME else nearby(name).rpartition("/")[2]


def _summed_up(device: DeviceRow) -> list[object]:
    """Return a device's row: the best way to fit, or the model as it is where nothing fits."""
    best = device.way(device.best)
    head = [_name(device), format_bytes(device.budget_bytes), device.verdict]
    if best is None:
        return [*head, shown(format_bytes, device.ways[0].peak_bytes), "", ""]
    return [
        *head,
        shown(format_bytes, best.peak_bytes),
        shown(format_duration, best.time_us),
        shown(_rate, best.per_second),
    ]


def _sharded_text(rows: Sequence[Sharded]) -> str:
    """Describe the peaks for the largest number of devices."""
    most = max(row.devices for row in rows)
    peaks = ", ".join(
        f"ZeRO-{row.zero_stage} {format_bytes(row.peak_bytes)}"
        for row in rows
        if row.devices == most
    )
    return (
        f"on {most} devices, each with this batch, the unchanged model would hold {peaks} per device "
        "(its state at the peak is divided; gathered tensors are not counted)"
    )


def _rows(device: DeviceRow, has_dim: bool) -> list[list[object]]:
    rows: list[list[object]] = []
    for way in device.ways:
        head = ["", ""] if rows else [_name(device), format_bytes(device.budget_bytes)]
        rows.append([*head, _SHOWN.get(way.how, way.how), *_cells(way, has_dim)])
    return rows


def _cells(way: WayRow, has_dim: bool) -> list[object]:
    after = []
    if has_dim and way.next_size is not None:
        after = [f"{way.next_size:,}: {'no' if way.next_is_impossible else 'none found'}"]
    elif has_dim:
        after = [""]
    peak = shown(format_bytes, way.peak_bytes, "")
    base = shown(format_duration, way.base_time_us)
    if not way.fits:
        said = "impossible" if way.next_is_impossible else "none found"
        if way.how == HOWS[0]:
            said = "does not fit"
        size = ["none"] if has_dim else []
        return [*size, peak, base, said, "", "", *after]
    return [
        *([f"{way.size:,}"] if has_dim else []),
        peak,
        base,
        shown(format_duration, way.time_us),
        format_percent(way.slowdown or 0.0),
        shown(_rate, way.per_second),
        *after,
    ]


def _rate(per_second: float) -> str:
    return f"{per_second:,.0f}" if per_second >= 100 else f"{per_second:.3g}"


def _print_least(out: Console, document: FitDocument) -> None:
    least = document.least
    where = f" at {document.dim}={least.size}" if least.size else ""
    here, host = least.on_device, least.on_host
    text = f"{format_both(here.peak_bytes)}{where}; none below {format_bytes(here.bound_bytes)}"
    if host is not None:
        text += (
            f". With inputs and outputs on the host: {format_bytes(host.peak_bytes)}; none below "
            f"{format_bytes(host.bound_bytes)}"
        )
    print_row(out, "Least", text)

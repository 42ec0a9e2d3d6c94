"""What `planner fit` shows: one document, and as text for a terminal."""

from __future__ import annotations

import shlex
from typing import Any

from rich.console import Console

from planner import __version__
from planner.defaults import AUTO_RESERVE
from planner.device_fits import HOWS, DeviceFit, DeviceFits, Fit
from planner.report.brief import print_notes, print_row
from planner.report.frontier import dims_text
from planner.report.plain import nearby, nearby_command
from planner.report.remarks import that_matter
from planner.report.terminal import print_assumptions, print_line, print_table, wide_console
from planner.report.views import number, picked
from planner.results import LeastPeak
from planner.units import format_both, format_bytes, format_duration, format_percent

Payload = dict[str, Any]
FIT_SCHEMA = "planner.fit/1"
_NAME = 12
_SHOWN = {"copies overlapped": "overlapped"}

_TERMS = (
    "nothing was run on these devices: times are the rooflines of their profiles, bytes those of live "
    "tensors and of kernels' workspace on the CPU; other workspaces and fragmentation are not counted",
    "what fits is a plan that the simulator replayed; planner optimize --budget writes and verifies one",
)


def fit_payload(found: DeviceFits) -> Payload:
    """The document of `planner fit`; conventions as in `planner.report.payload`."""
    return {
        "schema": FIT_SCHEMA,
        "planner_version": __version__,
        "model": str(found.model_path),
        **picked(found, "model_sha256", "dims", "sizes", "reserve", "seed", "seconds", "all_fit"),
        "dim": found.dim or None,
        "sentence": _sentence(found),
        "devices": [_device(device, found) for device in found.devices],
        "least": {
            "size": found.least_size or None,
            "on_device": _least(found.least_peak),
            "on_host": None if found.least_on_host is None else _least(found.least_on_host),
        },
        "sharded": [
            {"devices": s.devices, "zero_stage": s.stage, "peak_bytes": s.peak_bytes}
            for s in found.sharded
        ],
        "next": _next(found),
        "assumptions": [*_TERMS, *found.assumptions],
    }


def _device(device: DeviceFit, found: DeviceFits) -> Payload:
    return {
        **picked(device, "hardware", "title", "memory_bytes", "reserve_bytes", "budget_bytes"),
        **picked(device, "fits"),
        "best": None if device.best is None else device.best.how,
        "verdict": _verdict(device, found),
        "ways": [_way(way, bool(found.dim)) for way in device.ways],
    }


def _verdict(device: DeviceFit, found: DeviceFits) -> str:
    """Whether the model fits, in a few words."""
    best = device.best
    if best is None:
        least = found.least_peak
        if device.way("copies") is not None and found.least_on_host is not None:
            least = min(least, found.least_on_host, key=lambda one: one.found_bytes)
        return f"no: least {format_bytes(least.found_bytes)}"
    what = f"{found.dim} {best.size:,}" if found.dim else "fits"
    if best.how == HOWS[0]:
        return f"{what} as it is"
    return f"{what} at ×{1 + (best.slowdown or 0.0):.2f} ({best.how})"


def _next(found: DeviceFits) -> str | None:
    """The command for the first device that needs a plan or has none; None where every device holds the
    model as it is."""
    dims = dict(found.dims)
    for device in found.devices:
        best = device.best
        if best is not None and best.how == HOWS[0] and not found.dim:
            continue
        if found.dim:
            dims[found.dim] = found.least_size if best is None or best.size is None else best.size
        words = ["planner", "optimize", str(found.model_path)]
        words += [word for name, size in dims.items() for word in ("--dim", f"{name}={size}")]
        words += ["--hardware", device.hardware]
        words += [] if device.way("copies") is None else ["--device", "cuda"]
        words += ["--budget", f"{device.budget_bytes}B"]
        if best is None:
            words += ["--micro-batch", "auto"]
        return shlex.join(words)
    return None


def _way(way: Fit, has_dim: bool) -> Payload:
    return {
        **picked(way, "how", "fits", "peak_bytes", "time_us", "slowdown", "per_second"),
        **picked(way, "next_size", "next_is_impossible"),
        "what_if": way.how == "copies overlapped",
        "size": way.size if has_dim else None,
        "base_time_us": number(way.base_us),
    }


def _least(least: LeastPeak) -> Payload:
    return {"peak_bytes": least.found_bytes, "bound_bytes": least.bound_bytes}


def _sentence(found: DeviceFits) -> str:
    """How many fit, and which do not."""
    as_is = sum(1 for device in found.devices if device.ways[0].fits)
    fitting = sum(1 for device in found.devices if device.fits)
    count = len(found.devices)
    what = f" some {found.dim}" if found.dim else ""
    text = f"{fitting} of {count} device(s) hold{what if found.dim else ' it'}, {as_is} as it is"
    missing = [device.hardware for device in found.devices if not device.fits]
    if missing:
        text += f"; no plan found for {', '.join(missing)}"
    return f"{text} (predicted)."


# -- terminal ----------------------------------------------------------------------------------


def print_fit(payload: Payload, console: Console | None = None, *, in_full: bool = True) -> None:
    """The devices, each with the ways that make a difference.

    Args:
        in_full: with every way, and all that was assumed.
    """
    out = console or wide_console()
    dims = f" at {dims_text(payload['dims'])}" if payload["dims"] else ""
    print_line(out, nearby(payload["model"]) + dims, "bold")
    print_line(out, payload["sentence"])
    dim = payload["dim"]
    sized = [f">{dim}"] if dim else []
    per_second = f">{dim}/s" if dim else ">steps/s"
    title = f"The largest {dim} that fits" if dim else "Does it fit?"
    print_table(
        out,
        title,
        ["device", ">for a step", "verdict", ">peak", ">step", per_second],
        [_summed_up(device) for device in payload["devices"]],
    )
    if in_full:
        columns = [
            "device", ">for a step", "how", *sized, ">peak", ">as it is", ">step", ">slower",
            per_second, *(["next"] if dim else []),
        ]  # fmt: skip
        rows: list[list[object]] = []
        for device in payload["devices"]:
            rows += _rows(device, bool(dim))
        print_table(out, "Every way to fit", columns, rows)
    out.print()
    _print_least(out, payload)
    if in_full or not payload["all_fit"]:
        print_row(out, "Sharded", _sharded_text(payload["sharded"]))
    print_row(out, "Reserve", _reserve(payload["reserve"]))
    if payload["next"] is not None:
        print_row(out, "Next", nearby_command(payload["next"]), "cyan")
    if in_full:
        print_assumptions(out, payload["assumptions"])
        return
    assumed = payload["assumptions"]
    print_notes(out, [assumed[0], *that_matter(assumed[2:])])
    print_row(out, "More", "-v has every way to fit, and all that is assumed")


def _reserve(said: str) -> str:
    if said != AUTO_RESERVE:
        return f"{said} of each memory: not planned with"
    return (
        "1 GiB of each memory for driver, context and libraries (measured on an H200 and an H100: "
        "reports/cuda.md), or a tenth where that is less; --reserve for another"
    )


def _name(device: Payload) -> str:
    name = device["hardware"]
    return name if len(name) <= _NAME else nearby(name).rpartition("/")[2]


def _summed_up(device: Payload) -> list[object]:
    """A device in a line: the best way to fit, or the model as it is where nothing fits."""
    best = next((way for way in device["ways"] if way["how"] == device["best"]), None)
    head = [_name(device), format_bytes(device["budget_bytes"]), device["verdict"]]
    if best is None:
        return [*head, format_bytes(device["ways"][0]["peak_bytes"]), "", ""]
    return [
        *head,
        format_bytes(best["peak_bytes"]),
        format_duration(best["time_us"]),
        _rate(best["per_second"]),
    ]


def _sharded_text(rows: list[Payload]) -> str:
    """The peaks for the largest number of devices."""
    most = max(row["devices"] for row in rows)
    peaks = ", ".join(
        f"ZeRO-{row['zero_stage']} {format_bytes(row['peak_bytes'])}"
        for row in rows
        if row["devices"] == most
    )
    return (
        f"over {most} devices, each on this batch, the model as it is would hold {peaks} (state at its "
        "peak, divided; what is gathered on the way comes on top)"
    )


def _rows(device: Payload, has_dim: bool) -> list[list[object]]:
    rows: list[list[object]] = []
    for way in device["ways"]:
        head = ["", ""] if rows else [_name(device), format_bytes(device["budget_bytes"])]
        rows.append([*head, _SHOWN.get(way["how"], way["how"]), *_cells(way, has_dim)])
    return rows


def _cells(way: Payload, has_dim: bool) -> list[object]:
    after = []
    if has_dim and way["next_size"] is not None:
        after = [f"{way['next_size']:,}: {'no' if way['next_is_impossible'] else 'none found'}"]
    elif has_dim:
        after = [""]
    peak = "" if way["peak_bytes"] is None else format_bytes(way["peak_bytes"])
    if not way["fits"]:
        said = "impossible" if way["next_is_impossible"] else "none found"
        if way["how"] == HOWS[0]:
            said = "does not fit"
        size = ["none"] if has_dim else []
        return [*size, peak, format_duration(way["base_time_us"]), said, "", "", *after]
    return [
        *([f"{way['size']:,}"] if has_dim else []),
        peak,
        format_duration(way["base_time_us"]),
        format_duration(way["time_us"]),
        format_percent(way["slowdown"] or 0.0),
        _rate(way["per_second"]),
        *after,
    ]


def _rate(per_second: float) -> str:
    return f"{per_second:,.0f}" if per_second >= 100 else f"{per_second:.3g}"


def _print_least(out: Console, payload: Payload) -> None:
    least = payload["least"]
    where = f" at {payload['dim']}={least['size']}" if least["size"] else ""
    here, host = least["on_device"], least["on_host"]
    text = (
        f"{format_both(here['peak_bytes'])}{where}; none below {format_bytes(here['bound_bytes'])}"
    )
    if host is not None:
        text += (
            f". With inputs and outputs on the host: {format_bytes(host['peak_bytes'])}; none below "
            f"{format_bytes(host['bound_bytes'])}"
        )
    print_row(out, "Least", text)

"""The rows of `reports.sizes` as a page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from reports.shared import line, mib
from reports.sizes.networks import NETWORKS

GIB = 2**30
Row = Mapping[str, Any]


def page(data: Mapping[str, Any]) -> str:
    """Return the report."""
    rows: Sequence[Row] = data["rows"]
    lines = [
        "# Sizes that people have",
        "",
        "Written by `python -m reports.sizes`. Published configurations in float32, built on the meta "
        "device and exported with labels to a loss, without and with AdamW; no weight is in memory at "
        "any time, and nothing is run. *Held*: the most resident memory of a step's process and all "
        f"that it started. Searches of {data['limit_s']:g} s; two cores, with other work beside: times "
        "are rough, and since searches end by the clock, a plan made again may be better or worse.",
        "",
    ]
    for name, network in NETWORKS.items():
        mine = [row for row in rows if row["network"] == name]
        if mine:
            count = mine[0]["export"]["parameters"]
            size = f"{count:,} parameters, {4 * count / GIB:.1f} GiB"
            lines.append(f"- {network.title}: {size}; a sample is {network.sample}")
    lines += [
        "",
        "## Export",
        "",
        "| network | optimizer | nodes | file MiB | export s | of that tracing | held GiB |",
        "|---|---|---:|---:|---:|---:|---:|",
    ]
    files: dict[tuple[str, str], Row] = {}
    for row in rows:
        files.setdefault((row["network"], row["optimizer"]), row)
    lines += map(_export, files.values())
    lines += [
        "",
        "## Analysis",
        "",
        "`planner analyze` at the card of 24 GB: the peak of the model as it is, and with everything on "
        "the device the least peak that was found, beside what no plan can go below.",
        "",
        "| network | optimizer | batch | peak GiB | least found | bound | s | held GiB |",
        "|---|---|---:|---:|---:|---:|---:|---:|",
    ]
    lines += [_analysis(row) for row in rows if "analyze" in row]
    lines += [
        "",
        "## Plans",
        "",
        "`planner optimize --device cuda --no-verify`, with everything that may live on the host "
        "(`--resident auto`) and, for more than one sample, `--micro-batch auto`. *Time*: of the plan "
        "against the model as it is on a card that held it all, both with the copies that a session "
        "makes of what the caller feeds, as fast as page-locked memory is copied (arrays of NumPy were "
        "at 11 GB/s on an H100's host, [cuda.md](cuda.md)); *floor* is the proven bound in the base "
        "order and number of runs that were chosen. *From*, *to the host*: GiB of what lives there, all "
        "runs; *swapped*: of "
        "activations that are copied there for a while; *again*: of what is made by operations that "
        "run again. \\*: live bytes fit, and ONNX Runtime's arena is predicted to need more, for "
        "fragmentation.",
        "",
        "| network | optimizer | batch | card | peak GiB, before -> after | runs | time | floor "
        "| from the host | to the host | swapped | again | on the host | s | held GiB "
        "| page MiB, opens after |",
        "|---|---|---:|---|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---|",
    ]
    lines += [_plan(row) for row in rows]
    failed = [row for row in rows if not row["optimize"].get("fits")]
    if failed:
        lines += ["", "## Not planned", ""]
        lines += [
            f"- {row['network']}, {row['optimizer']}, batch {row['batch']}, {row['card']}: "
            f"{row['optimize'].get('said', row['optimize'].get('failed'))}"
            for row in failed
        ]
    return "\n".join(lines) + "\n"


def _export(row: Row) -> str:
    found = row["export"]
    return line(
        row["network"],
        row["optimizer"],
        f"{found['nodes']:,}",
        mib(found["file_bytes"]),
        f"{found['wall_s']:.0f}",
        f"{found['trace_s']:.0f}",
        f"{found['held_bytes'] / GIB:.2f}",
    )


def _analysis(row: Row) -> str:
    found = row["analyze"]
    start = row["network"], row["optimizer"], row["batch"]
    if "failed" in found:
        return line(*start, found["failed"], "", "", _cost(found))
    sizes = (_gib(found[f"{name}_bytes"]) for name in ("baseline", "least", "bound"))
    return line(*start, *sizes, _cost(found))


def _plan(row: Row) -> str:
    found = row["optimize"]
    start = row["network"], row["optimizer"], row["batch"], row["card"]
    if not found.get("fits"):
        least = found.get("least_bytes")
        text = f"no plan; least found {_gib(least)}" if least else "no plan"
        return line(*start, text, *[""] * 9, _cost(found), "")
    base_us = found["baseline_us"]
    bound = "-" if found["bound_us"] is None else f"x{found['bound_us'] / base_us:.2f}"
    seen = row.get("open", {})
    opens = (
        f"{seen['ready_s']:.1f} s"
        if seen.get("ready_s") and not seen["errors"]
        else "does not open"
    )
    moved = ("page_in", "page_out", "swapped", "recomputed", "host")
    return line(
        *start,
        f"{_gib(found['baseline_bytes'])} -> {_gib(found['peak_bytes'])}{_arena(found)}",
        found["runs"],
        f"x{found['time_us'] / base_us:.2f}",
        bound,
        *(_gib(found[f"{name}_bytes"]) for name in moved),
        _cost(found),
        f"{mib(found['report_bytes'])}, {opens}",
    )


def _arena(found: Mapping[str, Any]) -> str:
    """Mark a row whose predicted arena needs more than the live bytes that fit."""
    return " *" if any("arena is predicted to need more" in a for a in found["assumptions"]) else ""


def _cost(found: Mapping[str, Any]) -> str:
    return f"{found['wall_s']:.0f} | {found['held_bytes'] / GIB:.2f}"


def _gib(size: int | None) -> str:
    return "-" if size is None else f"{size / GIB:,.1f}"

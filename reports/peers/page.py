"""`peers.md` from the rows of `peers.json`."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from planner.units import counted
from reports.peers import prose
from reports.shared import MIB, line, mib

Row = Mapping[str, Any]
EAGER, AS_IT_IS, COMPILE = "eager", "onnxruntime", "compile "
KINDS = {"planned ": "planner", "fused ": "planner `--fuse auto`"}
"""The kinds of plans, by the beginning of a contestant's name, which the peer's name follows."""

_mib = partial(mib, form=",.1f")
SAVE_ON_CPU = "save_on_cpu"
_ALIKE = 1.15
"""Processors that multiply matrices this many times as fast as others are not one."""

_UNSTEADY = 1.3
"""Of the exported graph's longest step by its least, to the same of eager's: what is worth a remark."""

_LEVEL = 0.02
"""Ratios of times this close to 1, as shown, count as level."""

_TITLES = {
    EAGER: "PyTorch eager",
    "checkpoint": "`torch.utils.checkpoint` per block",
    SAVE_ON_CPU: "`save_on_cpu`",
    AS_IT_IS: "the exported graph on ONNX Runtime as it is",
}


def page(rows: Mapping[str, Row], device: str) -> str:
    """Return the report."""
    first = next(iter(rows.values()))
    torch = " and ".join(dict.fromkeys(row["versions"]["torch"] for row in rows.values()))
    text = [
        "# planner beside PyTorch",
        "",
        f"PyTorch {torch}, onnxruntime {first['versions']['onnxruntime']}, {first['machine']}; "
        f"written by `python -m reports.peers{'' if device == 'cpu' else ' --device ' + device}`.",
        "",
        prose.line(prose.WHY),
        "",
        *prose.method(device),
        "",
        "## planner at each peer's peak",
        "",
        prose.line(prose.COLUMNS),
        *_machines(rows),
        "",
        "| network | peer | peak MiB | step | ours | peak MiB | step | ours / peer | runtime | plan | |",
        "|---|---|---:|---:|---|---:|---:|---:|---:|---:|---|",
    ]
    text += [line for row in rows.values() for line in _conclusions(row)]
    for name, row in rows.items():
        text += ["", f"## {name}: {row['title']}", "", *_network(row)]
    if any("partitioner" in row for row in rows.values()):
        text += ["", *_partitioner(rows)]
    return "\n".join(text) + "\n"


def _machines(rows: Mapping[str, Row]) -> list[str]:
    """Say so where networks were measured on different processors, by how fast they multiply matrices."""
    fast = [row["products"]["runtime"] for row in rows.values() if "products" in row]
    if not fast or max(fast) < _ALIKE * min(fast):
        return []
    return [
        "",
        "Not all networks were measured on one processor, as the products of matrices below tell: "
        "compare within a network alone.",
    ]


def _unsteady(row: Row) -> list[str]:
    """Say so where the exported graph's steps took very different times, and eager's did not."""
    graph, eager = (row["times_us"][name] for name in (AS_IT_IS, EAGER))
    if max(graph) / min(graph) < _UNSTEADY * max(eager) / min(eager):
        return []
    return [
        "",
        f"The exported graph's step took from {min(graph) / 1e6:.2f} to {max(graph) / 1e6:.2f} s, "
        f"eager's from {min(eager) / 1e6:.2f} to {max(eager) / 1e6:.2f}, in the same rounds: "
        "what else went on there slows ONNX Runtime far more than PyTorch. By the least times of both, "
        f"the exported graph takes ×{min(graph) / min(eager):.2f} of eager's step.",
    ]


def _ratios(row: Row, name: str, by: str) -> list[float]:
    times = row["times_us"]
    return [a / b for a, b in zip(times[name], times[by], strict=True)]


def _ratio(row: Row, name: str, by: str) -> float:
    """Return the median of the rounds' ratios: the steps of a round follow each other closely."""
    return statistics.median(_ratios(row, name, by))


def _quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    if len(values) < 2:
        return values[0], values[0], values[0]
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, middle, high


def _spread(row: Row, name: str, by: str) -> str:
    """Return the median and the quartiles of the rounds' ratios."""
    low, middle, high = _quartiles(_ratios(row, name, by))
    return f"×{middle:.2f} ({low:.2f}–{high:.2f})"


def _kind(name: str) -> str:
    """Return the beginning of a plan's name; "" for another contestant."""
    return next((kind for kind in KINDS if name.startswith(kind)), "")


def _title(name: str) -> str:
    if kind := _kind(name):
        return f"{KINDS[kind]}, at the peak of {name.removeprefix(kind)}"
    if name.startswith(COMPILE):
        return f"`torch.compile`, budget {name.removeprefix(COMPILE)}"
    return _TITLES[name]


def _conclusions(row: Row) -> list[str]:
    found = row["contestants"]
    network = row["title"].split(",")[0]
    lines = []
    for name, plan in found.items():
        if not (kind := _kind(name)):
            continue
        peer = name.removeprefix(kind)
        runs = plan.get("same_as", name)
        ratios = {
            "peer": _ratio(row, peer, EAGER),
            "ours": _ratio(row, runs, EAGER),
            "runtime": _ratio(row, AS_IT_IS, EAGER),
            "plan": _ratio(row, runs, AS_IT_IS),
            "between": _ratio(row, runs, peer),
        }
        cells = [
            network if row.get("fused") is not True else f"{network} (SDPA)",
            _title(peer),
            _mib(found[peer]["peak"]),
            f"×{ratios['peer']:.2f}",
            KINDS[kind],
            _mib(found[runs]["peak"]),
            f"×{ratios['ours']:.2f}",
            f"**{_spread(row, runs, peer)}**",
            f"×{ratios['runtime']:.2f}",
            f"×{ratios['plan']:.2f}",
            _verdict(plan, found[runs]["peak"] <= found[peer]["peak"], ratios),
        ]
        lines.append(line(*cells))
    for name, why in row["skipped"].items():
        lines.append(f"| {network} | {_title(name)} | | | | | | | | | not measured: {why} |")
    return lines


def _verdict(plan: Row, fits: bool, ratios: Mapping[str, float]) -> str:
    """Judge ahead, level or behind; attribute it to runtime or plan."""
    ratio = ratios["between"]
    said = "" if fits else "at a higher peak: no plan was found within the peer's. "
    if plan.get("same_as"):
        said += "the graph as it is already fits. "
    if abs(round(ratio, 2) - 1) <= _LEVEL + 1e-9:
        return said + "level"
    if ratio < 1:
        return said + "ahead"
    return (
        f"{said}behind: ×{ratios['runtime']:.2f} by the runtime, and the plan costs "
        f"×{ratios['plan']:.2f} where the peer costs ×{ratios['peer']:.2f}"
    )


def _network(row: Row) -> list[str]:
    found = row["contestants"]
    eager = found[EAGER]
    double = eager["float64"]
    lines = [
        f"PyTorch {row['versions']['torch']}; {row['export']['nodes']:,} nodes exported; "
        f"{row['threads']} threads, "
        f"{len(row['times_us'][EAGER])} rounds; eager's least step "
        f"{min(row['times_us'][EAGER]) / 1e6:.2f} s. Eager beside float64: loss "
        f"{double['loss']:.0e}, gradients {double['gradients']:.0e}, worst {double['worst']:.0e}.",
        "",
        "| | peak MiB | of eager's | with scratch | RSS MiB | step / eager | recomputed | loss "
        "| gradients | worst |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for name, held in found.items():
        if "same_as" in held:
            continue
        apart = held["apart"]
        cells = [
            _title(name),
            _mib(held["peak"]),
            f"{100 * held['peak'] / eager['peak']:.0f}%",
            _mib(held["with_scratch"]) if "with_scratch" in held else "",
            "" if held["rss"] is None else f"{held['rss'] / MIB:,.0f}",
            _spread(row, name, EAGER),
            str(held.get("recomputed_ops", "")),
            *(f"{apart[key]:.0e}" for key in ("loss", "gradients", "worst")),
        ]
        lines.append(line(*cells))
    plans = [held for name, held in found.items() if _kind(name) and "passed" in held]
    if plans:
        passed = sum(held["passed"] for held in plans)
        bits = sum(held["identical"] == held["outputs"] for held in plans)
        lines += [
            "",
            f"{passed} of {len(plans)} plans passed planner's verification, {bits} of them with every "
            "output bit-identical to the exported graph's.",
        ]
    lines += [
        "With operations left whole, no plan was found within the peak of "
        f"{name.removeprefix(_kind(name))}: the least peak found is "
        f"{_mib(held['least_whole_bytes'])} MiB, and none can be below "
        f"{_mib(held['least_whole_bound_bytes'])}. "
        + ("Its row has a plan with 2% more." if held.get("is_above") else _in_chunks(held))
        for name, held in found.items()
        if "least_whole_bytes" in held
    ]
    lines += _least(row)
    if "products" in row:
        sizes, by = row["products"]["sizes"], row["products"]
        lines += [
            "",
            f"One product of {sizes[0]}×{sizes[1]} by {sizes[1]}×{sizes[2]} on this machine: "
            f"PyTorch {by['pytorch']:,.0f} GFLOP/s, ONNX Runtime {by['runtime']:,.0f}.",
        ]
    lines += _unsteady(row)
    if "shares" in eager:
        lines += [
            "",
            "Where the time goes, by each runtime's profiler, which slows a step and is rough: eager "
            f"{_shares(eager['shares'])}; the exported graph as it is "
            f"{_shares(found[AS_IT_IS]['shares'])}.",
        ]
    return lines


def _least(row: Row) -> list[str]:
    """Say how low each side comes, and whether `torch.compile`'s peak falls with its budget."""
    found, lines = row["contestants"], [""]
    peaks = {n: found[n]["peak"] for n in found if n.startswith(COMPILE)}
    by_budget = sorted(peaks, key=lambda name: -float(name.removeprefix(COMPILE)))
    falling = [peaks[name] for name in by_budget]
    if len(falling) > 1:
        is_monotone = all(less <= more for more, less in itertools.pairwise(falling))
        lines.append(
            f"`torch.compile`'s peak at budgets {', '.join(n.removeprefix(COMPILE) for n in by_budget)}: "
            f"{', '.join(map(_mib, falling))} MiB"
            + ("." if is_monotone else ": it does not fall with the budget.")
        )
    peers = [n for n in found if not _kind(n) and n not in (EAGER, AS_IT_IS)]
    if "least_peak_bytes" in row and peers:
        lowest = min(peers, key=lambda name: found[name]["peak"])
        least = row["least_peak_bytes"]
        lines.append(
            f"The lowest peak of PyTorch's is {_mib(found[lowest]['peak'])} MiB ({_title(lowest)}, "
            f"×{_ratio(row, lowest, EAGER):.2f} of eager's step). The least that planner finds "
            f"is {_mib(least)} MiB, by order and recompute alone (live bytes, predicted)."
        )
    return lines if len(lines) > 1 else []


def _in_chunks(held: Row) -> str:
    """Describe the effect of a plan with chunks of rows on the numbers."""
    same = "the same bits" if held["numbers"] == "exact" else "the same up to rounding"
    return (
        f"Its row has {counted(held['regions'], 'region')} of the graph in chunks of rows "
        f"(`--split auto`), and numbers that are {same}."
    )


def _shares(shares: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {100 * share:.0f}%" for name, share in shares.items())


def _partitioner(rows: Mapping[str, Row]) -> list[str]:
    lines = [
        "## PyTorch's partitioner and planner's solver on one problem",
        "",
        prose.line(prose.PARTITIONER),
        "",
        prose.line(prose.PARTITIONER_LIMITS),
        "",
        "| network | budget | peak MiB (keep all) | price | partitioner adds | planner adds | bound |",
        "|---|---:|---:|---|---:|---:|---:|",
    ]
    for row in rows.values():
        name = row["title"].split(",")[0] + (" (SDPA)" if row.get("fused") else "")
        for one in row.get("partitioner", ()):
            ours = one["planner"]
            cells = [
                name,
                f"{one['budget']:g}",
                f"{_mib(one['peak_bytes'])} ({_mib(one['keep_all_bytes'])})",
                "measured times" if one["price"] == "measured" else "operations",
                f"{100 * one['partitioner']['added']:.1f}%",
                "no plan" if ours is None else f"{100 * ours['added']:.1f}%",
                f"{100 * one['bound']:.1f}%",
            ]
            lines.append(line(*cells))
    return lines

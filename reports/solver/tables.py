"""`reports/solver.md` from the rows that there are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from reports.shared import Row, read_rows, table
from reports.solver.parts import PARTS

FOLDER = Path(__file__).parent
KEY = ("instance", "percent", "mode", "copies", "method", "limit_s")

_HEAD = """# The solver, measured

Written by `python -m reports.solver`; the rows are in `reports/solver/*.json`. Every row is a fresh
process on two threads, and every plan was replayed by `planner.simulate.simulate`: within the budget, and
taking the time claimed; a row that was not is an error. The machine has two cores and does other work
at the same time, so that a search gets up to four times less done in its limit than it would alone:
seconds and gaps are upper figures.

- *budget*: share of the base order's peak, rounded up to a byte. *peak*: of the plan, over the budget.
- *added*: time of the plan over that of the base order. *bound*: no schedule that first runs the
  operations in this order adds less. *gap*: how much longer than the bound the plan takes.
- *seconds*: until the answer. *MiB*: peak resident memory of the process, the problem file's reading
  included.
- *found by*: the engine, by the name that `planner solve --print-params` lists: `lp-rounding`: rounded
  from the LP over instants (`planner/bound`), and repaired; `cp-sat`: improved part by part, or as a
  whole; `anneal`, `greedy`: what they say; gone since: `instant-program` and `interval-program`, rounded
  from two integer programs, over instants and over the stretches between them; `swap-by-distance`, swaps
  of what waits longest; `anneal-runs`, annealed over second runs, from the base order, and `regression`,
  the same from a plan for little memory. Rows of before engines had names of their own call the LP
  `cut-lp` (with `guards`, `corners`, `slower-copies`), and the programs `cut-mip` and `cut-program`.
- *none*: no plan was found within the limit; in brackets the least peak found, over the budget.
  *impossible*: proved that no such schedule fits, in any of the base orders; in brackets the bound
  on the least peak, over the budget.
"""

_MOCCASIN = """## Published instances

The graphs published with MOCCASIN (Bartan et al., ICML 2023, arXiv:2304.14463), recompute only. The
base order is the file's where it has one, else `networkx.topological_sort`. *MOCCASIN's model*: rewritten
here from the paper on OR-tools CP-SAT (`baselines/moccasin_cp.py`), with the same limit and threads;
its bound, where phase 2 proved it, holds for two intervals a node. *their code*: MOCCASIN's public code
on two workers, measured earlier on a machine of this kind. *published*: added and seconds, on 16 cores,
from the authors' ICML 2023 poster, for the same graphs and budgets.
"""

_CHECKMATE = """## Checkmate's integer program

Jain et al., MLSys 2020, arXiv:1910.02653, rewritten from the paper (`baselines/checkmate_ilp.py`) and
solved by HiGHS through OR-tools' MathOpt (SCIP and CP-SAT, which MathOpt offers too, were slower on
chains of 31 and 51 operations). Recompute only. An ILP that runs out of time may leave a plan far from
its bound.
"""

_LEVERS = """Recompute only, swaps only, and both. Copies run beside the operations, one engine each
way (*overlapped*), or add to the step (*serial*).
"""

_ENGINES = """## Engines

What each engine did, over planner's rows of the tables above: {rows:,}, of which {counted:,} have counts.
*turns*: that it had. *seconds*: that these took, those of the engines that it called left out.
*accepted*: its plans that were better than any before. *final*: rows whose plan is its own; counted over
all rows, the other columns over those with counts. `order` is the base order, where it fits as it is.
Engines that are gone keep their rows. A race of base orders is not counted, but may have the final plan.
"""

_THEIR_CODE = {
    ("random layered n100", 90): "the optimum, 101 s",
    ("random layered n100", 80): "the optimum, 163 s",
    ("random layered n250", 90): "none in 150 s",
    ("random layered n250", 80): "none in 150 s",
    ("fcn_8_vgg train", 90): "the optimum, 19 s",
    ("ResNet50 train", 90): "no plan in 200 s",
}
"""Results by case; only these cases were run."""

_PUBLISHED = {
    ("random layered n250", 90): ("0.9%, 55 s", "0.9%, 685 s"),
    ("random layered n250", 80): ("4.9%, 640 s", "none"),
    ("random layered n1000", 90): ("0.7%, 3613 s", "none"),
    ("random layered n1000", 80): ("3.4%, 3612 s", "none"),
    ("fcn_8_vgg train", 90): ("0.0%, 3 s", "0.0%, 6 s"),
    ("fcn_8_vgg train", 80): ("0.1%, 3 s", "0.1%, 6 s"),
    ("ResNet50 train", 90): ("0.2%, 65 s", "0.1%, 434 s"),
    ("ResNet50 train", 80): ("0.3%, 69 s", "0.3%, 485 s"),
}
"""MOCCASIN and Checkmate's integer program, as MOCCASIN's authors printed them on their ICML 2023 poster
(table "Performance comparison across different graph families under different memory budgets"; its
budgets are the capacities of these rows, rounded up to a byte). The paper names a workstation of 16
cores."""


def rows_of(part: str, folder: Path = FOLDER) -> list[Row]:
    """Return the rows of a part that were measured so far."""
    return read_rows(folder / f"{part}.json", [])


def key_of(row: Row) -> tuple[Any, ...]:
    """Return the key that distinguishes the rows of a part."""
    return tuple(row[name] for name in KEY)


def markdown(folder: Path = FOLDER) -> str:
    """Return the report on the parts that have rows in `folder`."""
    parts = [_HEAD]
    if rows := rows_of("moccasin", folder):
        parts.append("\n".join((_MOCCASIN, _versus(rows, "MOCCASIN's model", _their_figures))))
    if rows := rows_of("checkmate", folder):
        parts.append("\n".join((_CHECKMATE, _versus(rows, "Checkmate"))))
    if rows := rows_of("real", folder):
        parts.append(
            f"## Training graphs\n\nONNX training graphs on the `{rows[0]['hardware']}` profile. "
            f"Budgets are shares of the peak of the best order, and what order alone saves is not in "
            f"them. Up to 40% of the time goes into a race of all base orders, the rest into the one "
            f"that does best in it; base, bound and gap are of that one.\n{_LEVERS}\n{_levers(rows)}"
        )
    if rows := rows_of("synthetic", folder):
        parts.append(
            "## Synthetic training graphs\n\nAs `reports/solver/synthetic.py` describes them.\n"
            f"{_LEVERS}\n{_levers(rows)}"
        )
    if rows := rows_of("growth", folder):
        parts.append(f"## Growth\n\nThe same graphs, larger and larger.\n\n{_levers(rows)}")
    if rows := [row for part in PARTS for row in rows_of(part, folder)]:
        parts.append(_engines(rows))
    return "\n".join(parts)


def _engines(rows: list[Row]) -> str:
    """Return the section on engines; empty if no row is planner's own."""
    ours = [row for row in rows if row["method"] == "planner" and "error" not in row]
    finals = Counter(row["engine"] for row in ours if "added" in row)
    counted = [row for row in ours if "engines" in row]
    sums: dict[str, Counter[str]] = {}
    for row in counted:
        for engine in row["engines"]:
            figures = {key: engine[key] for key in ("calls", "seconds", "improvements")}
            sums.setdefault(engine["name"], Counter()).update(figures)
    names = sorted({*finals, *sums}, key=lambda name: (-finals[name], name))
    lines = [[name, *_sums(sums.get(name)), f"{finals[name]:,}"] for name in names]
    head = _ENGINES.format(rows=len(ours), counted=len(counted))
    return f"{head}\n{_table(['engine', 'turns', 'seconds', 'accepted', 'final'], lines)}"


def _sums(sums: Counter[str] | None) -> list[str]:
    if sums is None:
        return ["", "", ""]
    return [f"{sums['calls']:,}", f"{sums['seconds']:,.1f}", f"{sums['improvements']:,}"]


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "\n".join(table(columns, rows)) + "\n"


def _versus(rows: list[Row], name: str, extra: Callable[[Row], list[str]] | None = None) -> str:
    """Pair planner's row with that of each other method."""
    cases: dict[tuple[Any, ...], list[Row]] = {}
    for row in sorted(rows, key=lambda row: (row["limit_s"], row.get("ops", 0))):
        cases.setdefault((row["instance"], row["percent"], row["limit_s"]), []).append(row)
    columns = ["instance", "ops", "budget", "limit s"]
    columns += ["added", "peak", "bound", "gap", "seconds", "found by"]
    columns += [f"{name}: added", "bound", "seconds", "status"]
    columns += ["their code", "published: MOCCASIN", "Checkmate"] if extra else []
    lines = []
    for case in cases.values():
        ours = next((row for row in case if row["method"] == "planner"), None)
        others = [row for row in case if row["method"] != "planner"] or _done_sooner(rows, case[0])
        for other in others or [None]:
            row = case[0]
            line = [row["instance"], f"{row.get('ops', 0):,}", f"{row['percent']:g}%"]
            line += [f"{row['limit_s']:g}", *_ours(ours), *_others(other)]
            lines.append([*line, *extra(row)] if extra else line)
    return _table(columns, lines)


def _done_sooner(rows: list[Row], case: Row) -> list[Row]:
    """Return another method's proved results within a shorter limit: more time changes nothing."""
    return [
        row
        for row in rows
        if row["method"] != "planner"
        and (row["instance"], row["percent"]) == (case["instance"], case["percent"])
        and row["limit_s"] < case["limit_s"]
        and row.get("optimal")
    ][:1]


def _ours(row: Row | None) -> list[str]:
    if row is None:
        return ["not run", *[""] * 5]
    if "error" in row:
        return [f"error: {row['error']}", *[""] * 5]
    return [
        _added(row),
        _share(row.get("peak_bytes"), row["capacity_bytes"]),
        _percent(row.get("bound")),
        _percent(row.get("gap")),
        f"{row['seconds']:.1f}",
        row["engine"] if "added" in row else "",
    ]


def _others(row: Row | None) -> list[str]:
    if row is None:
        return ["not run", "", "", ""]
    if "error" in row:
        return [f"error: {row['error']}", "", "", ""]
    added = _percent(row["added"]) if "added" in row else "none"
    return [added, _percent(row.get("bound")), f"{row['seconds']:.1f}", row["engine"]]


def _their_figures(row: Row) -> list[str]:
    case = row["instance"], row["percent"]
    return [_THEIR_CODE.get(case, "not run"), *_PUBLISHED.get(case, ("", ""))]


def _levers(rows: list[Row]) -> str:
    columns = ["instance", "ops", "budget", "levers", "copies", "limit s"]
    columns += ["added", "peak", "bound", "gap", "seconds", "found by", "recomputed", "MiB"]
    lines = []
    for row in rows:
        copies = "" if row["copies"] == "none" else row["copies"]
        line = [row["instance"], f"{row.get('ops', 0):,}", f"{row['percent']:g}%", row["mode"]]
        line += [copies, f"{row['limit_s']:g}", *_ours(row)]
        recomputed = f"{row['recomputed_ops']:,}" if "recomputed_ops" in row else ""
        lines.append([*line, recomputed, f"{row.get('rss_mib', 0):,}"])
    return _table(columns, lines)


def _added(row: Row) -> str:
    if "added" in row:
        return _percent(row["added"])
    if row.get("impossible"):
        least = row.get("least_bound_bytes", row.get("least_found_bytes"))
        return f"impossible ({_share(least, row['capacity_bytes'])})"
    return f"none ({_share(row.get('least_found_bytes'), row['capacity_bytes'])})"


def _percent(ratio: float | None) -> str:
    return "" if ratio is None else f"{100 * ratio:.3f}%"


def _share(part: int | None, whole: int) -> str:
    return "" if part is None else f"{100 * part / whole:.1f}%"

"""The summaries as people read them first: about ten lines, the outcome on top.

All that `planner.report.terminal` prints beside is in the page, in `--json`, and printed with
`--verbose`. What a reader would judge the result by stays: what failed, what was not verified, what was
assumed of the model (`planner.report.remarks`), one line each.
"""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from planner.report.frontier import POINT_COLUMNS, point_row
from planner.report.held import default_bits_text, grown_text, held_text
from planner.report.narrative import budget_text, times_of
from planner.report.plain import nearby, nearby_command, printable
from planner.report.remarks import that_matter
from planner.report.session_code import script_lines
from planner.report.terminal import print_table, proof, wide_console
from planner.report.what_if import WHAT_IF_COLUMNS, WHAT_IF_TITLE, what_if_rows
from planner.units import format_both, format_budget, format_bytes, format_duration, format_percent

Payload = dict[str, Any]
_NAME_WIDTH = 10
_RESIDENTS = 3
_GOOD, _BAD, _NOTE = "bold green", "bold red", "yellow"
_PREVIEW_COLUMNS = 7
"""Of a preview's columns, those before `found by` and `base order`."""

_SEEN = {"replayed": "from the order that ONNX Runtime ran"}
"""How live bytes were come by, where they were not measured."""


def print_optimize_brief(payload: Payload, console: Console | None = None) -> None:
    """Whether it fits, what was verified, the peak, the time, what was done, what to do next."""
    out = console or wide_console()
    head, verification = payload["headline"], payload["verification"]
    good = head["fits"] and head["verified"] is not False
    print_whole(out, _outcome(head), _GOOD if good else _BAD)
    print_row(out, "Verified", verified(verification, head), "" if verification else _NOTE)
    for failure in verification["failures"] if verification else ():
        print_row(out, "Failed", failure, "red")
    print_row(out, "Budget", _budget(head, payload["plan"]))
    if text := held_text(head):
        print_row(out, "Held", text)
    if text := grown_text(head):
        print_row(out, "Process", text)
    print_row(out, "Live", _peak(head))
    print_row(out, "Time", _time(head, payload["plan"]["cost_source"]))
    print_row(out, "Done", done(payload))
    print_row(out, "Search", _search(head, payload["plan"]))
    written = [nearby(path) for path in payload["outputs"].values() if path is not None]
    if written:
        print_row(out, "Wrote", ", ".join(written))
    for number, line in enumerate(script_lines(payload)):
        print_row(out, "" if number else "Script", line, "cyan")
    print_notes(out, [*_notes_of(head), *_remarks(payload)])
    step = next((step for step in payload["next_steps"] if step["command"]), None)
    if step is not None:
        print_row(out, "Next", step["text"])
        print_row(out, "", nearby_command(step["command"]), "cyan")
    print_row(
        out, "More", "the report, or -v" if head["verified"] is not False and written else "-v"
    )


def print_analysis_brief(payload: Payload, console: Console | None = None) -> None:
    """The peak, what it is made of, what is possible, and what a budget would cost."""
    print_peak_brief(payload["model"], payload["view"], console)
    print_possible_brief(payload, console)


def print_peak_brief(model: str, view: Payload, console: Console | None = None) -> None:
    """The first of it, which is known soon: the peak, and what it is made of."""
    out = console or wide_console()
    print_whole(out, nearby(model), "bold")
    where = f"at step {view['peak_step']:,} of {view['steps']:,}, {view['peak_operation']}"
    print_row(out, "Peak", f"{format_both(view['peak_bytes'])}, {where}")
    total = view["peak_bytes"] or 1
    parts = sorted(view["composition_at_peak"].items(), key=lambda item: -item[1])
    texts = [f"{name} {format_bytes(n)} ({format_percent(n / total)})" for name, n in parts]
    print_row(out, "Made of", ", ".join(texts))
    largest = view["residents_at_peak"][:_RESIDENTS]
    print_row(
        out, "Largest", ", ".join(f"{r['tensor']} {format_bytes(r['bytes'])}" for r in largest)
    )


def print_possible_brief(payload: Payload, console: Console | None = None) -> None:
    """The rest: what is possible, and what a budget would cost."""
    out = console or wide_console()
    head = payload["headline"]
    for name, text in _possible(head):
        print_row(out, name, text)
    print_row(
        out,
        "Time",
        f"{format_duration(float(head['time_us']))} a step, predicted ({payload['cost_source']})",
    )
    print_table(out, WHAT_IF_TITLE, list(WHAT_IF_COLUMNS), what_if_rows(payload))
    if payload["budget_preview"] is not None:
        points = payload["budget_preview"]["frontier"]["points"]
        rows = [point_row(point)[:_PREVIEW_COLUMNS] for point in points]
        columns: list[str] = [*POINT_COLUMNS[:_PREVIEW_COLUMNS]]
        title = f"What a budget would cost ({times_of(payload['cost_source'])})"
        print_table(out, title, columns, rows)
    print_notes(out, that_matter(payload["assumptions"]))
    print_row(
        out, "More", "-v adds arenas, residents and what was assumed; -o FILE.html writes a page"
    )


def print_whole(out: Console, text: str, style: str = "") -> None:
    """Print `text` as one line, however long it is."""
    out.print(Text(printable(text), style=style), soft_wrap=True)


def print_row(out: Console, name: str, text: str, style: str = "") -> None:
    """Print a name and what there is to say under it: as one line, which a terminal wraps beside it."""
    if out.is_terminal and name:
        grid = Table.grid()
        grid.add_column(width=_NAME_WIDTH)
        grid.add_column(overflow="fold")
        grid.add_row(Text(name, style="dim"), Text(printable(text), style=style))
        out.print(grid)
        return
    line = Text(name.ljust(_NAME_WIDTH), style="dim")
    line.append(printable(text), style=style)
    out.print(line, soft_wrap=True)


def print_notes(out: Console, notes: list[str]) -> None:
    """Print a line for each."""
    for note in notes:
        print_row(out, "Note", note, _NOTE)


def _needs_library(head: Payload) -> bool:
    """Whether the rewritten file has operators of planner's: a bare session does not open it."""
    moved = head["swapped_tensors"] or head["paged_tensors"]
    return bool(head["fused_nodes"] or (head["copies"] == "overlapped" and moved))


def verified(v: Payload | None, head: Payload) -> str:
    """What ONNX Runtime was seen to do, in a line."""
    if v is None:
        return "no: nothing was run on ONNX Runtime, these are predictions"
    said = []
    if v["outputs"]:
        same = sum(o["identical"] for o in v["outputs"])
        said.append(f"{same:,} of {len(v['outputs']):,} outputs bit-identical")
    if v["default_bits"]:
        where = "in plain sessions of both files"
        if _needs_library(head):
            where = "under default options, planner's library loaded for the rewritten file"
        said.append(f"{default_bits_text(v['default_bits'])} {where}")
    if v["micro"] and v["micro"]["outputs"]:
        near = len(v["micro"]["outputs"]) - len(v["micro"]["far"])
        said.append(f"{near:,} of {len(v['micro']['outputs']):,} totals within rounding")
    if v["orders"]:
        equal = all(order["equal"] for order in v["orders"])
        levels = ", ".join(dict.fromkeys(order["level"] for order in v["orders"]))
        said.append(f"order {'as planned' if equal else 'not as planned'} ({levels})")
    if v["copies"]:
        said.append(f"{v['copies']['ran']:,} of {v['copies']['planned']:,} copies ran")
    ways = list(dict.fromkeys(m["how"] for m in v["memory"] if m["model"] == "rewritten"))
    if ways:
        said.append(f"live bytes {' and '.join(ways)}")
    for cap in v["caps"]:
        runs = "runs" if cap["passed"] else "fails"
        said.append(f"{cap['model']} {runs} within {format_bytes(cap['cap_bytes'])}")
    if not v["caps"]:
        said.append("not run under a hard cap")
    return (
        f"{'yes' if v['passed'] else 'NO'}: {', '.join(said)} "
        f"(ONNX Runtime {v['ort_version']}, {v['provider']})"
    )


def done(payload: Payload) -> str:
    """What the rewritten model does that the original does not."""
    head = payload["headline"]
    if head["unchanged"] and head["micro"] is None:
        return "nothing: the model is within the budget, and was copied as it is"
    found = []
    if head["micro"] is not None:
        found.append(f"{head['micro']['runs']} runs of {head['micro']['samples']} samples a step")
    if head["recomputed_ops"]:
        size = format_bytes(head["recomputed_bytes"])
        found.append(f"{head['recomputed_ops']:,} operations recomputed ({size})")
    if head["swapped_tensors"]:
        size = format_bytes(head["swap_out_bytes"] + head["swap_in_bytes"])
        found.append(f"{head['swapped_tensors']:,} tensors swapped ({size} copied)")
    if head["paged_tensors"]:
        size = format_bytes(head["page_in_bytes"] + head["page_out_bytes"])
        found.append(f"{head['paged_tensors']:,} inputs and outputs on the host ({size} copied)")
    if head["split_nodes"]:
        found.append(f"{head['split_nodes']:,} nodes in up to {head['split_chunks']} chunks")
    if head["fused_nodes"]:
        found.append(f"{head['fused_nodes']:,} fused nodes")
    if head["halved_tensors"]:
        found.append(f"{head['halved_tensors']:,} saved tensors in {head['cast_saved']}, lossy")
    if _is_reordered(payload):
        found.append("order changed")
    return ", ".join(found) or "the order pinned, nothing else changed"


def _is_reordered(payload: Payload) -> bool:
    """Whether operations of the original run in another order among themselves."""
    before, after = (payload[side]["timeline"]["operation"] for side in ("before", "after"))
    shared = set(before) & set(after)
    return [name for name in before if name in shared] != [n for n in after if n in shared]


def _outcome(head: Payload) -> str:
    budget, reserve = format_bytes(head["budget_bytes"]), head["reserve_bytes"]
    after = format_bytes(head["peak_after_bytes"])
    within = "within" if head["fits"] else "over"
    apart = f" less {format_bytes(reserve)} in reserve" if reserve else ""
    what = f"live bytes of {after} are"
    if head["budget_of"] == "held" and head["held_bytes"] is not None:
        what = f"a session holds {format_bytes(head['held_bytes'])},"
    return f"{head['verdict']}: {what} {within} the budget of {budget}{apart}"


def _budget(head: Payload, plan: Payload) -> str:
    text = budget_text(head)
    if plan["max_slowdown"] is not None:
        slower = format_percent(plan["max_slowdown"])
        text += f"; at most {slower} slower: the {plan['binds'] or 'budget'} binds"
    return text


def _peak(head: Payload) -> str:
    before, after = head["peak_before_bytes"], head["peak_after_bytes"]
    saved = format_percent(1 - after / before) if before else "0%"
    text = f"{format_bytes(before)} -> {format_bytes(after)} ({saved} less, predicted)"
    if head["measured_peak_after_bytes"] is not None:
        found = format_bytes(head["measured_peak_after_bytes"])
        how = head["measured_peak_after_how"]
        text += f"; {found} {how} {_SEEN.get(how, 'on ONNX Runtime')}"
    if head["host_bytes"]:
        where = "on disk" if head["disk"] else "on the host"
        text += f"; {format_bytes(head['host_bytes'])} {where} at once"
    if head["file_bytes"]:
        text += f"; {format_bytes(head['file_bytes'])} in files"
    return text


def _time(head: Payload, cost_source: str) -> str:
    before, after = (format_duration(float(head[f"time_{k}_us"])) for k in ("before", "after"))
    ratio = head["predicted_time_ratio"]
    times = "" if ratio is None else f"x{float(ratio):.3f} "
    text = f"{times}predicted ({before} -> {after}, {cost_source or 'source unknown'})"
    if head["measured_time_ratio"] is None:
        return f"{text}; not measured"
    before, after = (
        format_duration(float(head[f"measured_time_{k}_us"])) for k in ("before", "after")
    )
    ratio = float(head["measured_time_ratio"])
    return f"{text}; x{ratio:.3f} measured on this machine ({before} -> {after})"


def _search(head: Payload, plan: Payload) -> str:
    seconds = "" if plan["solve_s"] is None else f"{float(plan['solve_s']):.1f} s: "
    return f"{seconds}{proof(head, plan)}"


def _notes_of(head: Payload) -> list[str]:
    """What the numbers themselves call for."""
    notes = []
    plain = head["measured_default_held_bytes"] or head["default_held_bytes"]
    if plain is not None and plain > head["budget_bytes"]:
        notes.append(
            "not within the budget under default session options: open the file as the lines under "
            "Script do, or run the script with planner run"
        )
    if head["halved_tensors"]:
        worst = head["worst_rms_rel_diff"]
        lossy = "by how much was not measured"
        if worst is not None:
            lossy = f"by {float(worst):.2g} at most (RMS)"
        notes.append(f"saved tensors in {head['cast_saved']} are lossy: outputs differ, {lossy}")
    return notes


def _remarks(payload: Payload) -> list[str]:
    verification = payload["verification"]
    notes = verification["notes"] if verification else []
    return that_matter([*payload["assumptions"], *notes])


def _possible(head: Payload) -> list[tuple[str, str]]:
    best = f"{format_bytes(head['best_order_peak_bytes'])} by order alone"
    rows = []
    if head["least_peak_bytes"] is not None:
        best += f", {format_budget(head['least_peak_bytes'])} with {head['least_peak_levers']}"
    rows.append(
        ("Possible", f"{best}; no plan below {format_bytes(head['least_peak_bound_bytes'])}")
    )
    if head["least_peak_on_host_bytes"] is not None:
        least, bound = head["least_peak_on_host_bytes"], head["least_peak_on_host_bound_bytes"]
        below = f"no plan below {format_bytes(bound)}"
        rows.append(("On host", f"{format_budget(least)} with inputs and outputs there; {below}"))
    return rows

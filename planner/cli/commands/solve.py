"""`planner solve`: solve a problem file, with no model at hand."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from planner.cli import options as o
from planner.cli.console import emit, note, progress, verbosity
from planner.cli.ending import signals_raise
from planner.cli.outputs import check_input, check_outputs
from planner.errors import InfeasibleBudgetError, UsageError
from planner.report.plain import nearby
from planner.units import (
    check_budget,
    format_both,
    format_budget,
    format_bytes,
    format_duration,
    format_part,
    format_percent,
    parse_budget,
)

if TYPE_CHECKING:
    from planner.plan.candidate import Candidate
    from planner.plan.problem import Problem
    from planner.plan.solved import Solved
    from planner.portfolio.table import Policy

SOLUTION_FORMAT = "planner-solution"
SOLUTION_VERSION = 1
_MAX_BINDING = 20
_OF_REPLAY = (
    "peak_bytes", "time_us", "recomputed_ops", "recompute_us", "swap_out_bytes", "swap_in_bytes",
    "swap_us",
)  # fmt: skip
_LEAST_S = 5.0
"""At most, where a proof has ended the search at once: what is the least that can be had?"""


def _print_params(value: bool) -> None:
    if value:
        from planner.portfolio.params import params_text

        print(params_text(), end="")
        raise typer.Exit


ProblemFile = Annotated[
    Path,
    typer.Argument(
        metavar="PROBLEM", help="The file that planner problem wrote.", show_default=False
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """Options that change the problem, and files to write."""

    budget: Annotated[
        str | None,
        typer.Option(
            "--budget",
            metavar="SIZE",
            help="Device memory: 16GB, 12GiB, or 60% of the base order's peak [the file's].",
        ),
    ] = None
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="FILE", help="Write figures and schedule (JSON)."),
    ] = None
    swap: Annotated[
        Literal["auto", "none", "only"],
        typer.Option(
            "--swap",
            help="Copy tensors to the host and back, if the file allows it: where it pays, never, or "
            "as the only lever.",
        ),
    ] = "auto"
    overlap: Annotated[
        bool | None,
        typer.Option(
            "--overlap/--no-overlap",
            help="Overlap copies with operations, or run them in between [as the file says].",
        ),
    ] = None
    params: o.Params = None
    print_params: Annotated[
        bool,
        typer.Option(
            "--print-params",
            help="Print the current parameters in the format of such a file, and exit.",
            callback=_print_params,
            is_eager=True,
        ),
    ] = False

    def policy(self) -> Policy:
        """The numbers of the search, with a note on those that change nothing here."""
        from planner.portfolio.params import changed_stages, read_params
        from planner.portfolio.table import POLICY

        if self.params is None:
            return POLICY
        policy = read_params(self.params)
        idle = [f"[{name}]" for name in changed_stages(policy)]
        if idle:
            verb = "changes" if len(idle) == 1 else "change"
            note(f"{' and '.join(idle)} of {self.params} {verb} nothing in this command")
        return policy


@o.asks("solve")
def solve(
    problem: ProblemFile,
    *,
    wanted: Changes,
    asked: o.Said,
    force: o.Force = False,
    json: o.Json = False,
) -> None:
    """Solve a planning problem: what to keep, recompute or swap to stay within a budget.

    Ctrl-C ends the search and gives the best plan so far, if one fits, with its gap. The operations stay
    in the order of the file: the tables race and frontier of FILE.toml have no effect here.

    \b
    Examples:
      planner solve problem.json --budget 80%
      planner solve problem.json --budget 60% --swap none -o solution.json
      planner solve problem.json --budget 12GiB --overlap --time-limit 300 --json
      planner solve --print-params > params.toml
      planner solve problem.json --budget 60% --params params.toml
    """
    if wanted.budget is not None:
        check_budget(wanted.budget)
    check_input(problem, what="problem")
    if wanted.output is not None:
        check_outputs(wanted.output, inputs=(problem, wanted.params), force=force)

    from planner import clock
    from planner.order.reorder import peak_of
    from planner.plan.problemfile import read_problem
    from planner.portfolio.solve import solve as solve_problem
    from planner.search.state import SearchSettings

    policy = wanted.policy()
    read = read_problem(problem)
    base_peak = peak_of(read, range(len(read.ops)))
    limited = _limited(read, base_peak, wanted)
    limit_s, seed = asked["time_limit_s"], asked["seed"]
    settings = SearchSettings(limit_s=limit_s, seed=seed, keep_on_interrupt=True)
    with clock.counting(is_capped=True), progress(limit_s) as report_progress, signals_raise():
        clock.cap(limit_s)
        solved = solve_problem(limited, settings, progress=report_progress, policy=policy)
        if solved.candidate is None:
            raise _infeasible(limited, solved, limit_s)
    figures = {
        **_figures(limited, solved, base_peak),
        "budget_text": wanted.budget,
        "swap_mode": wanted.swap if limited.allow_swap else "none",
        "seed": seed,
    }
    if wanted.output is not None:
        _write(wanted.output, figures, solved.candidate)
    emit(figures, _print, json=json)
    if wanted.output is not None:
        note(f"wrote {nearby(wanted.output)}")


def _write(output: Path, figures: dict[str, Any], candidate: Candidate) -> None:
    """The solution file: the figures, and `actions` ([kind, index of operation or tensor])."""
    from planner.files.structuring import json_text
    from planner.onnxio.save import atomic_write

    actions = [[action.kind.value, action.target] for action in candidate.actions]
    with atomic_write(output) as temporary:
        text = json_text({**figures, "actions": actions}) + "\n"
        temporary.write_text(text, encoding="utf-8")


def _limited(problem: Problem, base_peak: int, wanted: Changes) -> Problem:
    """Return the problem with the options applied."""
    swap = wanted.swap
    if wanted.budget is not None:
        capacity = parse_budget(wanted.budget, baseline_bytes=base_peak)
        problem = replace(problem, capacity_bytes=capacity)
    if wanted.overlap is not None:
        problem = replace(problem, overlap=wanted.overlap)
    if swap == "none":
        return problem.without_swaps()
    if swap == "only" and not problem.allow_swap:
        raise UsageError("the problem has no copies: write it with planner problem --swap auto")
    return replace(problem, allow_recompute=False) if swap == "only" else problem


def _infeasible(problem: Problem, solved: Solved, time_limit_s: float) -> InfeasibleBudgetError:
    """Return the error with the least peak found, a bound, and the tensors resident at that peak.

    A search that a proof ended has not looked for the least peak: it is searched for here, in part of the
    time left.
    """
    from planner.bound.instants import min_peak_bound
    from planner.portfolio.min_peak import min_peak

    bound, _ = min_peak_bound(problem)
    least = solved.least
    if solved.is_impossible:
        left_s = max(0.0, min(_LEAST_S, time_limit_s - solved.solve_s))
        least, proved = min_peak(problem, time_limit_s=left_s, start=least)
        bound = max(bound, proved, problem.capacity_bytes + 1)
    step = least.replay.peak_action
    resident = [
        (problem.tensors[t].name, problem.tensors[t].bytes)
        for t, birth, end in least.replay.copies
        if birth <= step < end
    ]
    return InfeasibleBudgetError(
        f"no plan found fits {format_both(problem.capacity_bytes)}: the least peak found is "
        f"{format_budget(least.peak_bytes)}, and no plan in this base order can be below "
        f"{format_bytes(bound)}",
        least_peak_bytes=least.peak_bytes,
        bound_bytes=bound,
        binding=tuple(sorted(resident, key=lambda item: -item[1])[:_MAX_BINDING]),
    )


def _figures(problem: Problem, solved: Solved, base_peak: int) -> dict[str, Any]:
    """Return the figures that `--json` prints besides the arguments."""
    replay = solved.found.replay
    return {
        "format": SOLUTION_FORMAT,
        "version": SOLUTION_VERSION,
        "problem": problem.name,
        "operations": len(problem.ops),
        "tensors": len(problem.tensors),
        "capacity_bytes": problem.capacity_bytes,
        "overlap": problem.overlap,
        "base_peak_bytes": base_peak,
        "base_us": problem.base_duration_us,
        **{name: getattr(replay, name) for name in _OF_REPLAY},
        **{name: getattr(solved, name) for name in ("bound_us", "bound_class", "gap", "engine")},
        "solve_s": round(solved.solve_s, 3),
        "engines": [asdict(engine) for engine in solved.engines],
        "interrupted": solved.is_interrupted,
    }


def _print(figures: dict[str, Any]) -> None:
    print("\n".join(_lines(figures)))
    if not verbosity.verbose:
        return
    from planner.report.terminal import print_table, wide_console

    rows = [
        [
            engine["name"],
            f"{engine['seconds']:.1f}",
            engine["improvements"],
            format_part(us, figures["base_us"]) if (us := engine["bound_raised_us"]) else "",
        ]
        for engine in figures["engines"]
    ]
    columns = ["engine", ">seconds", ">better plans", ">bound raised"]
    print_table(wide_console(), "Engines", columns, rows)


def _lines(figures: dict[str, Any]) -> list[str]:
    from planner.report.plain import printable

    base_us, base_peak = figures["base_us"], figures["base_peak_bytes"]
    copied = figures["swap_out_bytes"] + figures["swap_in_bytes"]
    how = "beside the operations" if figures["overlap"] else "on their stream"
    typed = f"{figures['budget_text']} = " if "%" in (figures["budget_text"] or "") else ""
    rows = [
        ("Problem", f"{printable(figures['problem'])}, {figures['operations']:,} operations"),
        ("Budget", typed + format_both(figures["capacity_bytes"])),
        ("Peak", f"{format_both(base_peak)} before, {format_both(figures['peak_bytes'])} after"),
        (
            "Time",
            f"{format_duration(base_us)} before, {format_duration(figures['time_us'])} after "
            "(in the problem's own times, as the gap and the bound are)",
        ),
        ("Added", format_part(figures["time_us"] - base_us, base_us)),
        ("Recomputed", f"{figures['recomputed_ops']:,} operations"),
    ]
    if copied:
        rows.append(("Copied", f"{format_bytes(copied)}, {how}"))
    stopped = ", interrupted" if figures["interrupted"] else ""
    gap = "" if figures["gap"] is None else f"; gap {format_percent(figures['gap'])}"
    rows += [
        ("Bound", f"{format_part(figures['bound_us'] - base_us, base_us)} added{gap}"),
        ("holds for", figures["bound_class"]),
        ("Search", f"{figures['engine']}, {figures['solve_s']:.1f} s of work{stopped}"),
    ]
    return [f"{name:<12}{text}" for name, text in rows]

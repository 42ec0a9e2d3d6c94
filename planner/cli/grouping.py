"""`--help` of the commands with many options: in groups, by what they are about."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand

GROUPS: dict[str, tuple[str, ...]] = {
    "Budget": (
        "budget",
        "budgets",
        "points",
        "max_slowdown",
        "reserve",
        "budget_of",
        "host_budget",
        "disk_budget",
    ),
    "Levers": (
        "swap",
        "recompute",
        "resident",
        "feeds",
        "copies",
        "disk",
        "split",
        "micro_batch",
        "cast_saved",
        "fuse",
        "no_pattern",
        "include",
        "exclude",
        "min_tensor",
    ),
    "Sizes": ("dim", "shape", "bound", "what_if"),
    "Target and hardware": (
        "device",
        "order",
        "no_ort_optimize",
        "hardware",
        "profile",
        "calibrate",
    ),
    "Solver": ("time_limit", "seed", "workers", "reproducible", "jobs", "ray", "params"),
    "Verification": (
        "verify",
        "no_verify",
        "strict",
        "inputs",
        "fail_if_peak_above",
        "fail_if_slower_than",
    ),
    "Output": ("output", "plan", "report", "trace", "dry_run", "force", "json", "verbose", "quiet"),
    "The command itself": ("memory_limit", "timeout", "help"),
}
"""Options by group, by the names of the functions' parameters."""

OTHERS = "Other options"


class GroupedCommand(TyperCommand):
    """A command whose help shows its options under the headings of `GROUPS`."""

    # the formatter's and the context's classes are Typer's own, which it does not export
    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write arguments, then each group that has options of this command."""
        records: dict[str, tuple[str, str]] = {}
        arguments: list[tuple[str, str]] = []
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is None:
                continue
            if param.param_type_name == "argument":
                arguments.append(record)
            else:
                records[str(param.name)] = record
        grouped = {name for names in GROUPS.values() for name in names}
        others = tuple(name for name in records if name not in grouped)
        sections = {"Arguments": arguments} | {
            title: [records[name] for name in names if name in records]
            for title, names in {**GROUPS, OTHERS: others}.items()
        }
        for title, rows in sections.items():
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)

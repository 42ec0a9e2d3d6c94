"""`planner diff`: the changes from one plan to another, and why the peak moved."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from planner.cli import options as o
from planner.cli.console import emit
from planner.cli.outputs import check_input
from planner.cli.thresholds import PeakAbove, SlowerThan, check_compared, parse_thresholds
from planner.errors import UsageError


@o.asks()
def diff(
    a: Annotated[Path, typer.Argument(metavar="A", help="The plan before.", show_default=False)],
    b: Annotated[Path, typer.Argument(metavar="B", help="The plan after.", show_default=False)],
    across_models: Annotated[
        bool, typer.Option("--across-models", help="Compare plans of different models, by name.")
    ] = False,
    fail_if_peak_above: PeakAbove = None,
    fail_if_slower_than: SlowerThan = None,
    json: o.Json = False,
) -> None:
    """Show what changed from one plan to another, and why the peak moved.

    Thresholds apply to the second plan; percentages are relative to the first.

    \b
    Examples:
      planner diff old.plan.json new.plan.json
      planner diff old.plan.json new.plan.json --json > diff.json
      planner diff main.plan.json branch.plan.json --across-models --fail-if-peak-above 105%
    """
    thresholds = parse_thresholds(fail_if_peak_above, fail_if_slower_than)
    check_input(a, what="plan")
    check_input(b, what="plan")

    from planner.pipeline.record.assemble import read_plan
    from planner.report.document.diff import diff_document
    from planner.report.terminal.diff import print_diff

    before, after = read_plan(a), read_plan(b)
    if before.model_sha256 != after.model_sha256 and not across_models:
        raise UsageError(
            f"the plans are of different models: {a} of {before.model_sha256}, {b} of "
            f"{after.model_sha256}; pass --across-models to compare them by name"
        )
    document = diff_document(before, after, paths=(a, b))
    emit(document, print_diff, json=json)
    check_compared(thresholds, document)

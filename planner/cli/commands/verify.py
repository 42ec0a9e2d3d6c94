"""`planner verify`: compare an original and a rewritten model on ONNX Runtime."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from planner.cli import options as o
from planner.cli.console import emit, progress
from planner.cli.outputs import check_input
from planner.errors import VerificationError


@o.asks("verify")
def verify(
    original: Annotated[
        Path, typer.Argument(metavar="ORIGINAL", help="The original model.", show_default=False)
    ],
    rewritten: Annotated[
        Path, typer.Argument(metavar="REWRITTEN", help="The rewritten model.", show_default=False)
    ],
    *,
    plan: Annotated[
        Path | None,
        typer.Option("--plan", metavar="FILE", help="The plan to check order and bytes against."),
    ] = None,
    asked: o.Said,
    fast: Annotated[
        bool, typer.Option("--fast", help="Run each model once only, as `planner optimize` does.")
    ] = False,
    json: o.Json = False,
) -> None:
    """Run two models on ONNX Runtime: same numbers, planned order, bytes, budget, step time.

    Exits with code 5 if a check fails.

    \b
    Examples:
      planner verify model.onnx model.planned.onnx --plan model.plan.json
      planner verify model.onnx model.planned.onnx --budget 60% --json
      planner verify model.onnx model.planned.onnx --shape x=8x3x224x224
    """
    check_input(original, what="model")
    check_input(rewritten, what="model")
    check_input(plan, what="plan")

    from planner import api

    with progress() as report_progress:
        verification = api.verify(
            original, rewritten, **asked.typed, plan=plan, fast=fast, progress=report_progress
        )
    from planner.report.document.verification import verify_document
    from planner.report.terminal.whole import print_verification

    emit(verify_document(verification), print_verification, json=json)
    if not verification.passed:
        raise VerificationError(
            f"ONNX Runtime does not confirm {rewritten}: {verification.failures[0]}"
        )

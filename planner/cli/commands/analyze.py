"""`planner analyze`: where the memory of a model goes."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from planner.cli import options as o
from planner.cli.console import emit, note, progress, verbosity
from planner.cli.outputs import check_input, check_outputs
from planner.report.plain import nearby

if TYPE_CHECKING:
    from planner.report.document.analysis import AnalyzeDocument
    from planner.results import ModelView


@o.asks("analyze")
def analyze(
    model: o.Model,
    *,
    asked: o.Said,
    output: o.HtmlReport = None,
    force: o.Force = False,
    json: o.Json = False,
) -> None:
    """Show the peak memory of a model, what it is made of, and what a budget would cost.

    \b
    Examples:
      planner analyze model.onnx
      planner analyze model.onnx --dim batch=32 -o memory.html
      planner analyze model.onnx --shape x=1x3x224x224
      planner analyze model.onnx --json > memory.json
    """
    check_input(model, what="model")
    if output is not None:
        sources = (model, asked["profile"], asked["inputs"])
        check_outputs(output, inputs=sources, force=force)

    from planner import api

    # whoever waits at a terminal reads the first lines while the rest is searched for
    is_awaited = sys.stdout.isatty() and not (json or verbosity.quiet or verbosity.verbose)
    with progress(asked.seconds) as report_progress:
        analysis = api.analyze(
            model,
            **asked.typed,
            progress=report_progress,
            on_model=partial(_print_peak, model) if is_awaited else None,
        )
        from planner.report.document.analysis import analyze_document

        document = analyze_document(analysis)
        if output is not None:
            from planner.report.page import write_page

            write_page(document, output)
    emit(document, partial(_print, is_awaited=is_awaited), json=json)
    if output is not None:
        note(f"wrote {nearby(output)}")


def _print(document: AnalyzeDocument, *, is_awaited: bool) -> None:
    from planner.report.terminal.brief import print_analysis_brief, print_possible_brief
    from planner.report.terminal.whole import print_analysis

    brief = print_possible_brief if is_awaited else print_analysis_brief
    (print_analysis if verbosity.verbose else brief)(document)


def _print_peak(model: Path, view: ModelView) -> None:
    """The peak, and what it is made of."""
    from planner.report.document.views import peak_document
    from planner.report.terminal.brief import print_peak_brief

    print_peak_brief(str(model), peak_document(view))

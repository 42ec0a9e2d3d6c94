"""`planner optimize`: rewrite a model so that it stays within a memory budget."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from planner.cli import options as o
from planner.cli.console import emit, note, progress, verbosity
from planner.cli.ending import signals_raise
from planner.cli.outputs import Outputs, check_input, check_outputs, name_outputs
from planner.cli.thresholds import PeakAbove, SlowerThan, check_optimized, parse_thresholds
from planner.errors import UsageError, VerificationError
from planner.report.plain import nearby
from planner.request.asking import VERIFICATION

if TYPE_CHECKING:
    from planner.report.document.outcome import OptimizeDocument
    from planner.results import OptimizeResult


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenFiles:
    """Options for the files to write, the verification, and the output."""

    verify: Annotated[
        Literal["fast", "thorough", "none"] | None,
        typer.Option(
            "--verify",
            help="How to verify: one run of each model, repeated runs at all optimization levels, "
            "or none [fast].",
            show_default=False,
            rich_help_panel=VERIFICATION,
        ),
    ] = None
    no_verify: Annotated[
        bool,
        typer.Option("--no-verify", help="Short for --verify none.", rich_help_panel=VERIFICATION),
    ] = False
    fail_if_peak_above: PeakAbove = None
    fail_if_slower_than: SlowerThan = None
    output: o.Rewritten = None
    plan: Annotated[
        Path | None,
        typer.Option(
            "--plan", metavar="FILE", help="Where to write the plan [NAME.plan.json beside it]."
        ),
    ] = None
    report: Annotated[
        Path | None,
        typer.Option(
            "--report",
            metavar="FILE",
            help="Where to write the report [NAME.report.html beside it].",
        ),
    ] = None
    trace: Annotated[
        Path | None,
        typer.Option("--trace", metavar="FILE.json", help="Write a trace for Perfetto too."),
    ] = None
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Plan and print; write nothing.")] = (
        False
    )
    force: o.Force = False
    json: o.Json = False

    def files(self, model: Path, *sources: Path | None) -> Outputs:
        """Where the outputs of `model` go.

        Raises:
            UsageError: one cannot be written.
        """
        found = name_outputs(model, output=self.output, plan=self.plan, report=self.report)
        if not self.dry_run:
            outputs = [found.model, found.plan, found.report, *([self.trace] if self.trace else [])]
            check_outputs(*outputs, inputs=(model, *sources), force=self.force)
        return found

    @property
    def verification(self) -> bool | Literal["thorough"]:
        """How both models are run, as `planner.optimize` takes it.

        Raises:
            UsageError: the options contradict each other.
        """
        if self.no_verify and self.verify not in (None, "none"):
            raise UsageError(
                f"--no-verify and --verify {self.verify} contradict each other: give one"
            )
        if self.verify == "thorough":
            return "thorough"
        return not self.no_verify and self.verify != "none"


@o.asks("optimize")
def optimize(model: o.Model, *, asked: o.Said, wanted: WrittenFiles) -> None:
    """Rewrite a model so that it stays within a memory budget, and prove it on ONNX Runtime.

    Writes the rewritten model, the plan (JSON) and a report (one HTML file). Ctrl-C ends the search
    and takes the best plan so far, if there is one.

    \b
    Examples:
      planner optimize model.onnx --budget 60%
      planner optimize model.onnx --budget 16GB --reserve 1GB -o small.onnx
      planner optimize model.onnx --budget 40% --dim batch=32
      planner optimize model.onnx --budget 40% --shape x=8x3x224x224
      planner optimize model.onnx --max-slowdown 5%
      planner optimize model.onnx --budget 60% --dry-run --json > plan.json
      planner optimize model.onnx --budget 60% --device webgpu
      planner optimize model.onnx --device cuda --hardware rtx-4090 --no-verify
      planner optimize model.onnx --budget 30% --device cuda --hardware a100-40gb --resident host
      planner optimize model.onnx --budget 60% --exclude 'op:Softmax' --min-tensor 1MiB
      planner optimize model.onnx --budget 40% --dim batch=64 --micro-batch auto
      planner optimize model.onnx --budget 40% --disk /mnt/nvme --disk-budget 200GB
      planner optimize model.onnx --budget 16GB --fail-if-slower-than 5%
    """
    if not {"budget", "max_slowdown"} & asked.typed.keys():
        _check_card(asked)
    verify = wanted.verification
    thresholds = parse_thresholds(wanted.fail_if_peak_above, wanted.fail_if_slower_than)
    check_input(model, what="model")
    files = wanted.files(model, asked["profile"], asked["inputs"])

    from planner import api
    from planner.pipeline.record.assemble import INTERRUPTED

    with failures_shown(json=wanted.json), progress(asked.seconds) as report_progress:
        result = api.optimize(
            model,
            **asked.typed,
            output=files.model,
            plan_path=files.plan,
            report_path=files.report,
            trace_path=wanted.trace,
            verify=verify,
            force=wanted.force,
            dry_run=wanted.dry_run,
            search_context=lambda: signals_raise(signal.SIGINT),
            progress=report_progress,
        )
    document = show(result, json=wanted.json)
    if wanted.trace is not None and not wanted.dry_run:
        note(f"wrote {nearby(wanted.trace)}")
    if wanted.dry_run:
        note("dry run: nothing was written")
    if INTERRUPTED in result.plan.assumptions:
        note(INTERRUPTED)
    if result.verification is not None and not result.verification.passed:
        raise typer.Exit(VerificationError.exit_code)
    check_optimized(thresholds, document.headline)


def _check_card(asked: o.Said) -> None:
    """Raise UsageError where no memory is known that could be the budget."""
    from planner.defaults import card_of, meant, set_aside

    meant(device=asked["device"], hardware=asked["hardware"], swap=None, resident=None)
    card = card_of(asked["device"], asked["hardware"])
    if card is None:
        raise UsageError(
            "give a --budget, such as 16GB or 60%, a --max-slowdown, such as 5%, or both; or "
            "give --device and --hardware of a GPU, whose memory is then the budget"
        )
    set_aside(card, asked["reserve"])


@contextlib.contextmanager
def failures_shown(*, json: bool) -> Iterator[None]:
    """Show what was found all the same where a verification fails: it is the evidence."""
    try:
        yield
    except VerificationError as error:
        if (failed := getattr(error, "result", None)) is not None:
            show(failed, json=json)
        raise


def show(result: OptimizeResult, *, json: bool) -> OptimizeDocument:
    """Print what came of planning; returns the document of `--json`."""
    from planner.report.document.outcome import optimize_document

    document = optimize_document(result)
    emit(document, _print, json=json)
    return document


def _print(document: OptimizeDocument) -> None:
    from planner.report.terminal.brief import print_optimize_brief
    from planner.report.terminal.whole import print_optimize

    (print_optimize if verbosity.verbose else print_optimize_brief)(document)

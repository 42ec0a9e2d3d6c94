"""The command line application, with one module per command.

Imports that take time wait until a command runs: `planner --help` must stay fast.
"""

from __future__ import annotations

from typing import Annotated

import typer
from typer.core import TyperCommand

from planner import __version__
from planner.cli.commands.analyze import analyze
from planner.cli.commands.apply import apply
from planner.cli.commands.diff import diff
from planner.cli.commands.doctor import doctor
from planner.cli.commands.explain import explain
from planner.cli.commands.export import export
from planner.cli.commands.fit import fit
from planner.cli.commands.optimize import optimize
from planner.cli.commands.problem import problem
from planner.cli.commands.run import run
from planner.cli.commands.solve import solve
from planner.cli.commands.sweep import sweep
from planner.cli.commands.verify import verify
from planner.cli.grouping import GroupedCommand

app = typer.Typer(
    name="planner",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(value: bool) -> None:
    if value:
        typer.echo(f"planner {__version__}")
        raise typer.Exit


@app.callback()
def _planner(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Plan the memory of an ONNX training graph: fit it into a budget at the least cost in time."""


for _command, _summary in (
    (analyze, "Show where the memory of a model goes."),
    (optimize, "Rewrite a model to stay within a memory budget."),
    (sweep, "Show what each budget costs in time."),
    (fit, "Show which devices hold a model, and at what price."),
    (apply, "Rewrite a model according to a plan."),
    (diff, "Show what changed from one plan to another."),
    (explain, "Show what a plan does with one tensor."),
    (verify, "Compare two models on ONNX Runtime."),
    (problem, "Write the planning problem of a model."),
    (solve, "Solve a planning problem."),
    (export, "Write the training graph of a PyTorch module."),
):
    app.command(
        short_help=_summary,
        no_args_is_help=True,
        cls=GroupedCommand if _command in (analyze, optimize, sweep, fit) else TyperCommand,
    )(_command)
app.command(
    short_help="Run a script whose sessions use plans.",
    no_args_is_help=True,
    context_settings={"allow_interspersed_args": False},
)(run)
app.command(short_help="Show what works here, and what is missing.")(doctor)

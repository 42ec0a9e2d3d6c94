"""The console entry: one command per module, one line per error, the exit code of the error.

Nothing heavy is imported before a command runs: `planner --help` must stay fast.
"""

from __future__ import annotations

import io
import os
import sys
import traceback
from collections.abc import Sequence
from typing import Annotated, NoReturn

import typer

from planner import __version__
from planner.cli import console
from planner.cli.analyze import analyze
from planner.cli.apply import apply
from planner.cli.diff import diff
from planner.cli.explain import explain
from planner.cli.export import export
from planner.cli.optimize import optimize
from planner.cli.problem import problem
from planner.cli.solve import solve
from planner.cli.sweep import sweep
from planner.cli.verify import verify
from planner.errors import Interrupted, PlannerError
from planner.report.plain import printable

app = typer.Typer(
    name="planner",
    no_args_is_help=True,
    add_completion=False,
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
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Plan the memory of an ONNX training graph: fit a budget at the least cost in time."""


for _command, _summary in (
    (analyze, "Show where the memory of a model goes."),
    (optimize, "Rewrite a model to stay within a memory budget."),
    (sweep, "Show what each budget costs in time."),
    (apply, "Rewrite a model as a plan says."),
    (diff, "Show what changed from one plan to another."),
    (explain, "Show what a plan does with one tensor."),
    (verify, "Compare two models on ONNX Runtime."),
    (problem, "Write the planning problem of a model."),
    (solve, "Solve a planning problem."),
    (export, "Write the training graph of a PyTorch module."),
):
    app.command(short_help=_summary, no_args_is_help=True)(_command)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit status; errors become one line on stderr."""
    console.verbosity.verbose = console.verbosity.quiet = False
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        command = typer.main.get_command(app)
        arguments = None if arguments is None else list(arguments)
        status = command.main(args=arguments, prog_name="planner", standalone_mode=False)
        sys.stdout.flush()
    except (KeyboardInterrupt, typer.Abort):
        status = Interrupted.exit_code
    except PlannerError as error:
        return _fail(console.error_line(error), error.exit_code)
    except BrokenPipeError:
        return _stdout_is_gone()
    except Exception as error:
        if hasattr(error, "format_message"):  # the parser's own: an unknown option and the like
            return _usage(error)
        if not _is_interrupted_import(error):
            return _unforeseen(error)
        status = Interrupted.exit_code
    if status == Interrupted.exit_code:
        console.say(console.error_line(Interrupted()))
    return status if isinstance(status, int) else 0


def _is_interrupted_import(error: BaseException | None) -> bool:
    """Ctrl-C while a compiled module starts comes out as that module's ImportError."""
    if not isinstance(error, ImportError):
        return False
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__ or error.__context__
    return error is not None


def run() -> NoReturn:
    """Entry point of the `planner` script."""
    sys.exit(main())


def _fail(line: str, status: int) -> int:
    if console.verbosity.verbose:
        traceback.print_exc()
    console.say(line)
    return status


def _usage(error: Exception) -> int:
    message = error.format_message()  # pyright: ignore[reportAttributeAccessIssue]
    if type(error).__name__ == "NoArgsIsHelpError":  # the message is the help
        console.say(message)
        return 2
    context = getattr(error, "ctx", None)
    command = context.command_path if context else "planner"
    first = printable(" ".join(message.split()))
    console.say(f"planner: error: {first} (see {command} --help)")
    return 2


def _unforeseen(error: Exception) -> int:
    if isinstance(error, OSError) and error.strerror:  # a full disk, a file taken away
        what = f"{error.filename}: " if error.filename else ""
        return _fail(f"planner: error: {printable(what + error.strerror)}", 1)
    if console.verbosity.verbose:
        traceback.print_exc()
        hint = "this is a bug in planner"
    else:
        hint = "this is a bug in planner; run again with -v for the traceback"
    what = printable(f"{type(error).__name__}: {' '.join(str(error).split())}")
    console.say(f"planner: error: {what}; {hint}")
    return 1


def _stdout_is_gone() -> int:
    """The reader of our stdout left (`planner ... | head`): stop without a word."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0

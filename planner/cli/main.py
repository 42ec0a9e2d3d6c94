"""The console entry: one line per error, and the error's exit code.

This module imports nothing that takes time: signals are answered from the first moment on.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Sequence
from types import FrameType
from typing import NoReturn

_INSTALLED = frozenset({"numpy", "onnx", "onnx_ir", "onnxruntime", "ortools"})
"""Required packages that a broken installation may lack."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit status; errors become one line on stderr.

    An exception of the script of `planner run` reaches the caller.
    """
    outcome = _answer(arguments)
    if isinstance(outcome, int):
        return outcome
    outcome()
    return 0


def _answer(arguments: Sequence[str] | None) -> int | Callable[[], object]:
    """Return the exit status of one command line, or the script that Python is to run."""
    import io

    import typer

    from planner.cli import console
    from planner.cli.app import app
    from planner.cli.limits import no_limit
    from planner.errors import Interrupted, MemoryLimitError, PlannerError, out_of_memory

    console.verbosity.verbose = console.verbosity.quiet = False
    console.verbosity.stage = ""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    typed = sys.argv[1:] if arguments is None else list(arguments)
    try:
        command = typer.main.get_command(app)
        status = command.main(args=typed, prog_name="planner", standalone_mode=False)
        sys.stdout.flush()
    except (KeyboardInterrupt, typer.Abort):
        status = Interrupted.exit_code
    except PlannerError as error:
        return _fail(console.error_line(error, typed), error.exit_code)
    except MemoryError as error:
        return _fail(console.error_line(out_of_memory(error)), MemoryLimitError.exit_code)
    except BrokenPipeError:
        return _stdout_is_gone()
    except Exception as error:
        if hasattr(error, "format_message"):  # the parser's own: an unknown option and the like
            return _usage(error)
        if not _is_interrupted_import(error):
            return _unforeseen(error)
        status = Interrupted.exit_code
    finally:
        no_limit()
    if status == Interrupted.exit_code:
        console.say(console.error_line(Interrupted()))
    return status if isinstance(status, int) or callable(status) else 0


def _is_interrupted_import(error: BaseException | None) -> bool:
    """Tell whether an ImportError hides Ctrl-C, pressed while a compiled module was starting."""
    if not isinstance(error, ImportError):
        return False
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__ or error.__context__
    return error is not None


def run() -> NoReturn:
    """Run the `planner` script's command line, and end the process."""
    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _end_before_the_start)
    from planner.cli.ending import end, watch_signals
    from planner.processes.garbage import collect_seldom

    as_it_was = _interpreter()
    stop_watching = watch_signals()
    collect_seldom()
    outcome = _answer(None)
    if isinstance(outcome, int):
        end(outcome)
    stop_watching()
    as_it_was()
    outcome()
    sys.exit()


def _interpreter() -> Callable[[], None]:
    """Return a function that restores the interpreter's present settings for a script."""
    import gc
    import io

    threshold, errors = gc.get_threshold(), sys.stdout.errors

    def as_it_was() -> None:
        gc.set_threshold(*threshold)
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(errors=errors)

    return as_it_was


def _end_before_the_start(number: int, _frame: FrameType | None) -> NoReturn:
    """End the process on a signal before the command has started: no file needs cleaning up yet."""
    os.write(2, b"planner: interrupted; nothing was written\n")
    os._exit(128 + number)


def _fail(line: str, status: int) -> int:
    from planner.cli import console, ending

    ending.wait_if_leaving()
    if console.verbosity.verbose:
        import traceback

        traceback.print_exc()
    console.say(line)
    return status


def _usage(error: Exception) -> int:
    from planner.cli import console
    from planner.report.plain import printable

    message = error.format_message()  # pyright: ignore[reportAttributeAccessIssue]
    if type(error).__name__ == "NoArgsIsHelpError":  # the message is the help
        console.say(message)
        return 2
    context = getattr(error, "ctx", None)
    command = context.command_path if context else "planner"
    first = printable(" ".join(message.split()).replace("Value error, ", ""))
    console.say(f"planner: error: {first}{_meant(first)} (see {command} --help)")
    return 2


def _meant(message: str) -> str:
    """Suggest the choice that a mistyped value is near; empty for other messages."""
    typed, is_choice, choices = message.partition(" is not one of ")
    value = typed.rpartition(" ")[2].strip("'")
    if not is_choice:
        return ""
    from difflib import get_close_matches

    near = get_close_matches(value, [word.strip("',. ") for word in choices.split()], n=1)
    return f" Did you mean {near[0]!r}?" if near else ""


def _unforeseen(error: Exception) -> int:
    from planner.cli import console
    from planner.errors import UsageError
    from planner.report.plain import printable

    if isinstance(error, OSError) and error.strerror:  # a full disk, a file taken away
        # every file is written under its name; an error without a name is about standard output
        what = f"{error.filename or 'standard output'}: "
        return _fail(f"planner: error: {printable(what + error.strerror)}", 1)
    if (
        isinstance(error, ModuleNotFoundError)
        and (error.name or "").partition(".")[0] in _INSTALLED
    ):
        line = f"planner: error: {printable(error)}; planner doctor says what to install"
        return _fail(line, UsageError.exit_code)
    hint = "this is a bug in planner"
    if not console.verbosity.verbose:
        hint += "; run again with -v for the traceback"
    what = printable(f"{type(error).__name__}: {' '.join(str(error).split())}")
    return _fail(f"planner: error: {what}; {hint}{_place(error)}", 1)


def _place(error: Exception) -> str:
    """Return the place in planner where an error began, in brackets: a bug that comes and goes may
    not come again."""
    import traceback
    from pathlib import Path

    package = Path(__file__).parents[1]
    began = error.__cause__ if error.__cause__ and error.__cause__.__traceback__ else error
    for frame in reversed(traceback.extract_tb(began.__traceback__)):
        path = Path(frame.filename)
        if path.is_relative_to(package):
            return f" ({path.relative_to(package.parent)}:{frame.lineno})"
    return ""


def _stdout_is_gone() -> int:
    """Stop without a message: the reader of stdout has gone (`planner ... | head`)."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0

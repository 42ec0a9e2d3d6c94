"""The options of the commands: those of a request, from its fields, and the options of every command.

`asks("optimize")` gives a command the options of its name from `planner.request`, and adds the limits
and the verbosity of the command line itself. The command's function has parameters of its own, and
one, `asked`, in whose place `--help` lists the options of the request. Public functions receive only
the options that the user typed: their defaults are the only ones.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from planner.cli.console import verbosity
from planner.cli.limits import limit_memory, limit_time
from planner.request import options_of
from planner.request.asking import ITSELF, SOLVER, Command, Flag, Option
from planner.request.together import check_together


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """The arguments of one command's options, by name.

    Attributes:
        typed: the arguments that the user typed.
        unsaid: the default of every argument.
    """

    typed: Mapping[str, Any]
    unsaid: Mapping[str, Any]

    def __getitem__(self, name: str) -> Any:
        """Return an argument as it was typed, or else its default."""
        return self.typed.get(name, self.unsaid[name])

    @property
    def seconds(self) -> float | None:
        """The machine's seconds that a search keeps to; None with --reproducible, which counts work."""
        return None if self["reproducible"] else self["time_limit_s"]


def _set_verbose(value: bool) -> None:
    verbosity.verbose = verbosity.verbose or value


def _set_quiet(value: bool) -> None:
    verbosity.quiet = verbosity.quiet or value


Model = Annotated[Path, typer.Argument(metavar="MODEL", help="The ONNX model.", show_default=False)]
PlanFile = Annotated[
    Path,
    typer.Argument(
        metavar="PLAN", help="The plan that planner optimize wrote.", show_default=False
    ),
]
Rewritten = Annotated[
    Path | None,
    typer.Option(
        "-o",
        "--output",
        metavar="FILE",
        help="Where to write the rewritten model [./NAME.planned.onnx].",
    ),
]
HtmlReport = Annotated[
    Path | None,
    typer.Option("-o", "--output", metavar="FILE.html", help="Write an HTML report too."),
]
Params = Annotated[
    Path | None,
    typer.Option(
        "--params",
        metavar="FILE.toml",
        help="Parameters of the search, in the format of planner solve --print-params [the "
        "built-in ones].",
        rich_help_panel=SOLVER,
    ),
]
Force = Annotated[bool, typer.Option("-f", "--force", help="Overwrite outputs that exist.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")]


def _of_the_program(
    memory_limit: Annotated[
        str | None,
        typer.Option(
            "--memory-limit",
            metavar="SIZE",
            help="Exit with code 8 if planner's own processes use more memory than this [no limit].",
            callback=limit_memory,
            is_eager=True,
            rich_help_panel=ITSELF,
        ),
    ] = None,
    timeout: Annotated[
        float | None,
        typer.Option(
            "--timeout",
            metavar="SECONDS",
            help="Exit with code 6 if the whole command takes longer than this [no limit].",
            callback=limit_time,
            is_eager=True,
            rich_help_panel=ITSELF,
        ),
    ] = None,
    verbose: Annotated[
        bool,
        typer.Option(
            "-v",
            "--verbose",
            help="Print all results, every stage on stderr, and tracebacks of errors.",
            callback=_set_verbose,
            is_eager=True,
        ),
    ] = False,
    quiet: Annotated[
        bool,
        typer.Option(
            "-q",
            "--quiet",
            help="Print neither progress nor summary.",
            callback=_set_quiet,
            is_eager=True,
        ),
    ] = False,
) -> None:
    """Declare the options that every command takes; their callbacks do all the work."""


_PROGRAM = tuple(inspect.signature(_of_the_program, eval_str=True).parameters.values())


def asks(
    command: Command | None = None, *, limited: bool = True
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Give a command its options of a request, and those of the program.

    Args:
        command: its name; None for a command without options of a request. A parameter of the command's
            function whose type is a dataclass becomes an option for each field.
        limited: False leaves out the options of the program.
    """

    def with_options(function: Callable[..., Any]) -> Callable[..., Any]:
        own = inspect.signature(function, eval_str=True).parameters.values()
        values: dict[str, Any] = {
            each.name: each.annotation for each in own if _is_value(each.annotation)
        }
        options = options_of(command) if command else ()
        flags = [_parameter(each, flag) for each in options for flag in each.flags]
        program = [*_PROGRAM] if limited else []
        context = inspect.Parameter(
            "context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context
        )
        parameters = [
            shown.replace(kind=inspect.Parameter.KEYWORD_ONLY)
            for shown in (context, *(p for each in own for p in _shown(each, flags)), *program)
        ]

        @functools.wraps(function)
        def called(context: typer.Context, **given: Any) -> Any:
            for each in program:
                del given[each.name]
            if command is not None:
                typed = dict(_typed(options, context, given))
                check_together(typed)
                unsaid = {each.name: each.unsaid for each in options}
                given["asked"] = Said(typed=typed, unsaid=unsaid)
            for name, kind in values.items():
                names = inspect.signature(kind).parameters
                given[name] = kind(**{each: given.pop(each) for each in names})
            return function(**given)

        called.__signature__ = inspect.Signature(parameters)  # pyright: ignore[reportAttributeAccessIssue]
        called.__annotations__ = {each.name: each.annotation for each in parameters}
        return called

    return with_options


def _shown(own: inspect.Parameter, flags: list[inspect.Parameter]) -> Iterator[inspect.Parameter]:
    """Yield the command-line parameters of a function's parameter.

    These are the parameter itself, the fields of a dataclass, or, for `asked`, `flags`.
    """
    if own.annotation is Said:
        yield from flags
    elif _is_value(own.annotation):
        hints = get_type_hints(own.annotation, include_extras=True)
        for each in fields(own.annotation):
            default = inspect.Parameter.empty if each.default is MISSING else each.default
            yield own.replace(name=each.name, annotation=hints[each.name], default=default)
    else:
        yield own


def _is_value(annotation: Any) -> bool:
    """Tell whether a parameter is a dataclass with an option for each of its fields."""
    return is_dataclass(annotation) and annotation is not Said


def _typed(
    options: tuple[Option, ...], context: typer.Context, given: dict[str, Any]
) -> Iterator[tuple[str, Any]]:
    """Yield the arguments that were typed, and remove all options from `given`.

    Raises:
        UsageError: an argument is invalid.
    """
    for each in options:
        values = [given.pop(flag.name) for flag in each.flags]
        sources = [context.get_parameter_source(flag.name) for flag in each.flags]
        if any(source is not None and source.name == "COMMANDLINE" for source in sources):
            yield each.name, each.checked(each.read(*values))


def _parameter(option: Option, flag: Flag) -> inspect.Parameter:
    """Return the parameter from which typer makes an option."""
    default = option.unsaid
    if flag.kind is bool and default is not None:
        default = False
    elif default is not None and flag.kind is str:
        default = str(default)
    elif not default and default != 0:
        default = None
    info = typer.Option(
        flag.text,
        metavar=flag.metavar,
        help=flag.help,
        min=flag.least,
        max=flag.most,
        autocompletion=flag.completions,
        show_default=default is not None,
        rich_help_panel=option.group,
    )
    kind = flag.kind if default is not None else flag.kind | None
    return inspect.Parameter(
        flag.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, info]
    )

"""How a field of a request is asked for: in one place, at the field.

A field whose type is `Annotated[..., option(...)]` carries an `Option`. From it come the flags and the
help of every command that takes it (`planner.cli.options`), the check of a public function's argument and
the field's value (`planner.defaults`), and the line on it in that function's docstring (`documented`).

Nothing heavy is imported here: `planner --help` reads it.
"""

from __future__ import annotations

import inspect
import operator
import re
import shlex
import textwrap
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from types import NoneType
from typing import Any, Literal, TypeVar, get_args, get_origin

from planner.errors import UsageError
from planner.files.reading import why_not_a_file
from planner.files.writing import FileName, path_or_none
from planner.units import parse_bytes

F = TypeVar("F", bound=Callable[..., object])

Command = Literal[
    "analyze", "explain", "export", "fit", "optimize", "problem", "run", "solve", "sweep", "verify"
]

PLANS: tuple[Command, ...] = ("optimize",)
WITH_COPIES: tuple[Command, ...] = ("optimize", "analyze", "sweep")
READ_MODELS: tuple[Command, ...] = (*WITH_COPIES, "fit", "problem")

BUDGET, LEVERS, SIZES = "Budget", "Levers", "Sizes"
TARGET, SOLVER = "Target and hardware", "Solver"
VERIFICATION, OUTPUT, ITSELF = "Verification", "Output", "The command itself"
GROUPS = (BUDGET, LEVERS, SIZES, TARGET, SOLVER, VERIFICATION, OUTPUT, ITSELF)
"""Headings of `--help`, in their order."""

_FLAG = re.compile(r"--[a-z][a-z-]*[a-z]")
_OF_FLAGS = frozenset({"help", "kind", "metavar", "least", "most", "completions"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Flag:
    """One option of the command line.

    Attributes:
        text: `"--swap"`, or `"--calibrate/--no-calibrate"`.
        help: its line of `--help`, with the default in brackets.
        kind: the type of its value; bool for a flag without one; None for the field's type.
        least, most: limits of a number.
        completions: values for the shell to complete.
    """

    text: str
    help: str
    kind: Any = None
    metavar: str | None = None
    least: int | None = None
    most: int | None = None
    completions: Callable[[], list[str]] | None = None

    @property
    def name(self) -> str:
        """`"no_pattern"` for `--no-pattern`."""
        return self.text.partition("/")[0].lstrip("-").replace("-", "_")


def _as_it_is(value: Any) -> Any:
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """A field of a request, as an argument of the public functions and on the command line.

    Attributes:
        flags: on the command line; several if one argument combines their values.
        group: heading in `--help`.
        commands: the commands that take it.
        argument: the type of the argument; None for the flag's, or a file's name for a path.
        unsaid: the argument's default; `...` for the field's.
        more: documentation for callers in Python besides the help.
        read: converts the flags' values to the argument; a flag `--no-...` is negated.
        check: raises UsageError if the argument is invalid.
        take: converts the argument to the field's value.
        unlike: by command, attributes of the first flag and of the option that differ there.
        name, part: the name of argument and field; the part of the request that has the field, "" for
            the request itself.
    """

    flags: tuple[Flag, ...]
    group: str
    commands: tuple[Command, ...] = PLANS
    argument: Any = None
    unsaid: Any = ...
    more: str = ""
    read: Callable[..., Any] = _as_it_is
    check: Callable[[Any], object] = _as_it_is
    take: Callable[[Any], Any] = _as_it_is
    unlike: Mapping[Command, Mapping[str, Any]] = field(default_factory=dict)
    name: str = ""
    part: str = ""

    @property
    def flag(self) -> Flag:
        """The first flag."""
        return self.flags[0]

    def of(self, command: Command) -> Option:
        """The option as one command has it."""
        other = self.unlike.get(command, {})
        shown = {name: other[name] for name in _OF_FLAGS & other.keys()}
        rest = {name: other[name] for name in other.keys() - _OF_FLAGS}
        return replace(self, flags=(replace(self.flag, **shown), *self.flags[1:]), **rest)

    def checked(self, value: Any) -> Any:
        """An argument, which may be meant.

        Raises:
            UsageError: it is no choice, or cannot be read.
        """
        choices = get_args(self.argument) if get_origin(self.argument) is Literal else ()
        if choices and value not in (*choices, self.unsaid):
            *others, last = map(str, choices)
            raise UsageError(f"{self.flag.text} is {', '.join(others)} or {last}, not {value!r}")
        if value is not None and value != self.unsaid:
            self.check(value)
        return value

    def typed(self, value: Any) -> list[str]:
        """Return the words that set a value on the command line; none for the default."""
        if value == self.unsaid or value is None:
            return []
        if self.flag.kind is bool:
            return [self.flag.text]
        values = value if isinstance(value, tuple) else (value,)
        return [f"{self.flag.text} {shlex.quote(str(each))}" for each in values]


def option(text: str, help: str, *, beside: tuple[Flag, ...] = (), **rest: Any) -> Option:
    """The option of a field.

    Args:
        text, help: of its flag.
        beside: more flags, whose values `read` takes, too.
        rest: other attributes of the flag and of the `Option`.
    """
    shown = {name: rest.pop(name) for name in _OF_FLAGS & rest.keys()}
    return Option(flags=(Flag(text=text, help=help, **shown), *beside), **rest)


HUB = "hf:"
"""Before a configuration of transformers, in place of a model."""


def configuration_of(model: FileName) -> str | None:
    """Take the configuration out of `hf:CONFIG`; None for a file."""
    text = str(model)
    return text.removeprefix(HUB) if text.startswith(HUB) else None


def is_file(what: str) -> Callable[[FileName], None]:
    """A check that a path is that of a regular file, which is called `what`."""

    def check(path: FileName) -> None:
        if why := why_not_a_file(Path(path)):
            if configuration_of(path) is not None:
                why = f"is a configuration: planner export {path} -o model.onnx makes its graph"
            raise UsageError(f"{what} {path} {why}")

    return check


def is_size(flag: str, *, zero_ok: bool = False) -> Callable[[str], int]:
    """A check that a text is a size."""
    return partial(parse_bytes, what=flag, zero_ok=zero_ok)


def options_in(request: type[Any], part: str = "") -> Iterator[Option]:
    """The options of a request's fields, and of those of its parts, in their order."""
    for each in fields(request):
        typed: Any = each.type
        if hasattr(typed, "__dataclass_fields__"):
            yield from options_in(typed, each.name)
        for found in getattr(typed, "__metadata__", ()):
            yield _filled(found, typed.__origin__, each.default, each.name, part)


def _filled(found: Option, typed: Any, default: Any, name: str, part: str) -> Option:
    """Return the option completed from its field's declaration."""
    flag, given = found.flag, {}
    if flag.kind is None:  # that of the field, which may be None besides
        alone = [each for each in get_args(typed) if each is not NoneType]
        flag = replace(flag, kind=alone[0] if NoneType in get_args(typed) else typed)
    if found.argument is None:
        given["argument"] = FileName if flag.kind is Path else flag.kind
        given["take"] = path_or_none if flag.kind is Path else found.take
    if flag.text.startswith("--no-"):
        given["read"] = operator.not_
    if found.unsaid is ...:
        given["unsaid"] = default
    return replace(found, flags=(flag, *found.flags[1:]), name=name, part=part, **given)


def documented(options: tuple[Option, ...]) -> Callable[[F], F]:
    """Have the docstring of a function say what `options` are, behind its own `Args:`."""
    named = {flag.text: each.name for each in options for flag in each.flags}

    def line(each: Option) -> str:
        said = each.flag.help.replace("; may be repeated", "")
        if each.flag.kind is bool and each.unsaid is True:
            said = f"False: {said[0].lower()}{said[1:]}"
        text = f"{each.name}: {said} {each.more}".rstrip()
        text = _FLAG.sub(lambda at: f"`{named[at[0]]}`" if at[0] in named else at[0], text)
        return textwrap.fill(text, 96, initial_indent=" " * 4, subsequent_indent=" " * 8)

    def with_options(function: F) -> F:
        if function.__doc__:  # none with python -OO
            before, args, rest = inspect.cleandoc(function.__doc__).partition("\nArgs:\n")
            own, gap, after = rest.partition("\n\n")
            function.__doc__ = before + args + "\n".join([own, *map(line, options)]) + gap + after
        return function

    return with_options

"""No function below the public ones takes more than six parameters: what belongs together is a value."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import planner
import planner.torch

ROOT = Path(__file__).parents[1]
MOST = 6

COMMANDS = ROOT / "planner" / "cli" / "commands"
"""A command's parameters are its options, as typer wants them."""

GIVEN = {
    "lowers": "the arguments of the ATen operator",
    "takes_apart": "the arguments of the ATen operator",
}
"""Decorators of functions whose parameters are not theirs to choose, and what those are."""


def parameters_of(function: ast.FunctionDef | ast.AsyncFunctionDef) -> list[str]:
    """Names of all parameters but the object's own."""
    of = function.args
    stars = [a for a in (of.vararg, of.kwarg) if a is not None]
    names = [a.arg for a in (*of.posonlyargs, *of.args, *of.kwonlyargs, *stars)]
    return [name for name in names if name not in ("self", "cls")]


def functions_of(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Every function and method in a file, inner ones too."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def is_given(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether a decorator decides what the function is called with."""
    calls = (d.func if isinstance(d, ast.Call) else d for d in function.decorator_list)
    return any(ast.unparse(call) in GIVEN for call in calls)


def exported() -> set[str]:
    """`file:name` of what the packages export; they say where from to type checkers."""
    found: set[str] = set()
    for package in (planner, planner.torch):
        tree = ast.parse(Path(str(package.__file__)).read_text(encoding="utf-8"))
        found |= {
            f"{node.module.replace('.', '/')}.py:{alias.name}"
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("planner.")
            for alias in node.names
            if node.module and alias.name in package.__all__
        }
    return found


def test_no_function_takes_more_than_six_parameters() -> None:
    public = exported()
    assert "planner/api.py:optimize" in public
    wide = set()
    for path in sorted((ROOT / "planner").rglob("*.py")):
        where = path.relative_to(ROOT).as_posix()
        for function in functions_of(path):
            is_wide = len(parameters_of(function)) > MOST and path.parent != COMMANDS
            if is_wide and not is_given(function):
                wide.add(f"{where}:{function.name}")
    assert not wide - public

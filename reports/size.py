"""How large the planning side is: `python -m reports.size [REVISION ...]` writes `size.md`.

Counts files, lines, functions of over 60 lines, functions of over six parameters, and private
constants of the planning rooms, in the working tree and at each revision named.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = Path(__file__).with_suffix(".md")
ROOMS = (
    "bound",
    "exact",
    "fit",
    "order",
    "pack",
    "pipeline",
    "plan",
    "portfolio",
    "search",
    "simulate",
)
MAX_LINES, MAX_PARAMETERS = 60, 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """Counts over some files."""

    files: int
    most_files_in_a_folder: int
    lines: int
    long_functions: int
    wide_functions: int
    private_constants: int


def size_of(sources: dict[str, str]) -> Size:
    """The counts.

    Args:
        sources: text by path.
    """
    functions = [f for text in sources.values() for f in _functions(ast.parse(text))]
    folders = [path.rpartition("/")[0] for path in sources]
    return Size(
        files=len(sources),
        most_files_in_a_folder=max((folders.count(folder) for folder in set(folders)), default=0),
        lines=sum(text.count("\n") for text in sources.values()),
        long_functions=sum(_lines(f) > MAX_LINES for f in functions),
        wide_functions=sum(_parameters(f) > MAX_PARAMETERS for f in functions),
        private_constants=sum(len(list(_constants(ast.parse(text)))) for text in sources.values()),
    )


def _functions(tree: ast.Module) -> Iterator[ast.FunctionDef]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))


def _lines(function: ast.FunctionDef) -> int:
    return (function.end_lineno or function.lineno) - function.lineno + 1


def _parameters(function: ast.FunctionDef) -> int:
    of = function.args
    names = [a.arg for a in (*of.posonlyargs, *of.args, *of.kwonlyargs)]
    return len([name for name in names if name not in ("self", "cls")])


def _constants(tree: ast.Module) -> Iterator[str]:
    """Names of private module constants, as `_MAX_OPS`."""
    for node in tree.body:
        targets = node.targets if isinstance(node, ast.Assign) else []
        for target in targets:
            names = target.elts if isinstance(target, ast.Tuple) else [target]
            for name in names:
                if isinstance(name, ast.Name) and name.id.startswith("_") and name.id.isupper():
                    yield name.id


def working_tree() -> dict[str, str]:
    """The planning rooms' sources as they are."""
    return {
        str(path.relative_to(ROOT)): path.read_text(encoding="utf-8")
        for room in ROOMS
        for path in sorted((ROOT / "planner" / room).rglob("*.py"))
    }


def at_revision(revision: str) -> dict[str, str]:
    """The same at a revision, of the rooms that it has."""
    listed = _git("ls-tree", "-r", "--name-only", revision, "planner/").splitlines()
    paths = [p for p in listed if p.endswith(".py") and p.split("/")[1] in ROOMS]
    return {path: _git("show", f"{revision}:{path}") for path in paths}


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout


def markdown(sizes: dict[str, Size]) -> str:
    """The page: a column for each tree."""
    rows = (
        ("files", "files"),
        ("files in the fullest folder", "most_files_in_a_folder"),
        ("lines", "lines"),
        (f"functions of over {MAX_LINES} lines", "long_functions"),
        (f"functions of over {MAX_PARAMETERS} parameters", "wide_functions"),
        ("private constants", "private_constants"),
    )
    lines = [
        "# Size of the planning side",
        "",
        f"`planner/{{{','.join(ROOMS)}}}`; written by `python -m reports.size REVISION ...`.",
        "",
        "| | " + " | ".join(sizes) + " |",
        "|---|" + "---:|" * len(sizes),
    ]
    lines += [
        f"| {title} | " + " | ".join(f"{getattr(s, name):,}" for s in sizes.values()) + " |"
        for title, name in rows
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Count and write the page."""
    sizes = {revision: size_of(at_revision(revision)) for revision in sys.argv[1:]}
    sizes["working tree"] = size_of(working_tree())
    page = markdown(sizes)
    PAGE.write_text(page, encoding="utf-8")
    print(page)


if __name__ == "__main__":
    main()

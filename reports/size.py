"""How large the house is: `python -m reports.size [REVISION ...]` writes `size.md`.

Counts files, lines, lines of code (without docstrings, comments and blank lines), functions of over 60
lines and of over six parameters, private constants and class names that are there twice: of `planner/`
without the exporter, of its planning side, and of the exporter, in the working tree and at each revision
named. Of reports and tests it counts the lines alone.
"""

from __future__ import annotations

import ast
import io
import subprocess
import tarfile
import tokenize
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from reports.shared import FOLDER, program

ROOT, PAGE = FOLDER.parent, FOLDER / "size.md"
ROOMS = (
    "bound", "exact", "fit", "order", "pack", "pipeline", "plan", "portfolio", "search", "simulate",
)  # fmt: skip
TREES = ("planner", "reports", "tests")
_NO_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}
MAX_LINES, MAX_PARAMETERS = 60, 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """The counts over some files."""

    files: int
    most_files_in_a_folder: int
    lines: int
    code_lines: int
    long_functions: int
    wide_functions: int
    private_constants: int
    doubled_classes: int


def size_of(sources: dict[str, str]) -> Size:
    """Count over the sources.

    Args:
        sources: text by path.
    """
    trees = [ast.parse(text) for text in sources.values()]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    functions = [node for node in nodes if isinstance(node, ast.FunctionDef)]
    classes = Counter(node.name for node in nodes if isinstance(node, ast.ClassDef))
    folders = [path.rpartition("/")[0] for path in sources]
    return Size(
        files=len(sources),
        most_files_in_a_folder=max(Counter(folders).values(), default=0),
        lines=sum(text.count("\n") for text in sources.values()),
        code_lines=sum(map(code_lines, sources.values(), trees)),
        long_functions=sum(_lines(f) > MAX_LINES for f in functions),
        wide_functions=sum(_parameters(f) > MAX_PARAMETERS for f in functions),
        private_constants=sum(len(list(_constants(tree))) for tree in trees),
        doubled_classes=sum(count > 1 for count in classes.values()),
    )


def code_lines(source: str, tree: ast.Module) -> int:
    """Count the lines that are neither blank nor only a comment or a docstring."""
    found: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in _NO_CODE:
            found.update(range(token.start[0], token.end[0] + 1))
    texts = (
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    )
    told = {n for t in texts for n in range(t.lineno, (t.end_lineno or t.lineno) + 1)}
    return len(found - told)


def _lines(function: ast.FunctionDef) -> int:
    return (function.end_lineno or function.lineno) - function.lineno + 1


def _parameters(function: ast.FunctionDef) -> int:
    of = function.args
    return sum(a.arg not in ("self", "cls") for a in (*of.posonlyargs, *of.args, *of.kwonlyargs))


def _constants(tree: ast.Module) -> Iterator[str]:
    """Return the names of private module constants, such as `_MAX_OPS`."""
    for node in tree.body:
        targets = node.targets if isinstance(node, ast.Assign) else []
        for target in targets:
            names = target.elts if isinstance(target, ast.Tuple) else [target]
            for name in names:
                if isinstance(name, ast.Name) and name.id.startswith("_") and name.id.isupper():
                    yield name.id


def working_tree() -> dict[str, str]:
    """Return the sources of the working tree."""
    return {
        str(path.relative_to(ROOT)): path.read_text(encoding="utf-8")
        for tree in TREES
        for path in sorted((ROOT / tree).rglob("*.py"))
    }


def at_revision(revision: str) -> dict[str, str]:
    """Return the sources of a revision."""
    command = ["git", "archive", revision, *TREES]
    packed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout
    found: dict[str, str] = {}
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        for member in archive:
            file = archive.extractfile(member) if member.name.endswith(".py") else None
            if file is not None:
                found[member.name] = file.read().decode("utf-8")
    return found


def parts_of(sources: dict[str, str]) -> dict[str, Size]:
    """Count part by part."""
    package = {path: text for path, text in sources.items() if path.startswith("planner/")}
    own = {path: text for path, text in package.items() if path.split("/")[1] != "export"}
    side = {path: text for path, text in own.items() if path.split("/")[1] in ROOMS}
    exporter = {path: text for path, text in package.items() if path not in own}
    return {
        "`planner/` without the exporter": size_of(own),
        "of it the planning side": size_of(side),
        "`planner/export`": size_of(exporter),
    }


def markdown(trees: dict[str, dict[str, str]]) -> str:
    """Return the page, with a column for each tree."""
    rows = (
        ("files", "files"),
        ("files in the fullest folder", "most_files_in_a_folder"),
        ("lines", "lines"),
        ("lines of code", "code_lines"),
        (f"functions of over {MAX_LINES} lines", "long_functions"),
        (f"functions of over {MAX_PARAMETERS} parameters", "wide_functions"),
        ("private constants", "private_constants"),
        ("class names that are there twice", "doubled_classes"),
    )
    parts = {name: parts_of(sources) for name, sources in trees.items()}
    lines = [
        "# Size",
        "",
        f"Written by `python -m reports.size REVISION ...`. The planning side is "
        f"`planner/{{{','.join(ROOMS)}}}`.",
        "",
        "| | | " + " | ".join(trees) + " |",
        "|---|---|" + "---:|" * len(trees),
    ]
    for part in next(iter(parts.values())):
        lines += [
            f"| {part} | {title} | "
            + " | ".join(f"{getattr(of[part], name):,}" for of in parts.values())
            + " |"
            for title, name in rows
        ]
    for tree in TREES[1:]:
        counts = [
            sum(text.count("\n") for path, text in sources.items() if path.startswith(f"{tree}/"))
            for sources in trees.values()
        ]
        lines.append(f"| `{tree}/` | lines | " + " | ".join(f"{n:,}" for n in counts) + " |")
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> None:
    """Count and write the page."""
    parser = program("reports.size", __doc__)
    parser.add_argument("revisions", nargs="*", metavar="REVISION")
    trees = {r: at_revision(r) for r in parser.parse_args(arguments).revisions}
    page = markdown({**trees, "working tree": working_tree()})
    PAGE.write_text(page, encoding="utf-8")
    print(page)


if __name__ == "__main__":
    main()

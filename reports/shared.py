"""What programs that write pages share: rows kept in JSON, lines of tables, a process of its own."""

from __future__ import annotations

import argparse
import json
import multiprocessing
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from playwright.sync_api import Browser

FOLDER = Path(__file__).parent
ZOO = FOLDER.parent / "models" / "zoo"
MIB = 2**20
Row = dict[str, Any]


def program(name: str, about: str | None) -> argparse.ArgumentParser:
    """Make the parser of `python -m NAME`, described by its module's docstring."""
    return argparse.ArgumentParser(
        prog=f"python -m {name}",
        description=about,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def read_rows(path: Path, empty: Any) -> Any:
    """Read the rows measured earlier, or return `empty`."""
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else empty


def write_rows(path: Path, rows: object) -> None:
    """Write the rows measured so far."""
    path.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


def line(*cells: object) -> str:
    """Format a line of a Markdown table."""
    return f"| {' | '.join(map(str, cells))} |"


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    """Return the lines of a Markdown table: text in its first column, figures in the others."""
    marks = ("---", *("---:" for _ in columns[1:]))
    return [line(*cells) for cells in (columns, marks, *rows)]


def mib(size_bytes: float | None, form: str = ".1f", none: str = "-") -> str:
    """Format bytes in MiB; `none` if unknown."""
    return none if size_bytes is None else f"{size_bytes / MIB:{form}}"


def apart(call: Callable[..., Row], *arguments: Any) -> Row | None:
    """Measure a row in a fresh process; None where that ended without an answer."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        try:
            return pool.submit(call, *arguments).result()
        except BrokenProcessPool:
            return None


def least_s(command: Sequence[str | Path], runs: int, cwd: Path | None = None) -> float:
    """Return the least wall time of a process, of some runs."""
    times = []
    for _ in range(runs):
        start = time.perf_counter()
        subprocess.run(command, check=True, cwd=cwd, capture_output=True)
        times.append(time.perf_counter() - start)
    return min(times)


@contextmanager
def chromium(*flags: str) -> Iterator[Browser]:
    """Keep Debian's Chromium open in the context."""
    from playwright.sync_api import sync_playwright

    path = shutil.which("chromium")
    if path is None:
        sys.exit("chromium is not installed")
    with (
        sync_playwright() as p,
        p.chromium.launch(executable_path=path, args=["--no-sandbox", *flags]) as browser,
    ):
        yield browser


def plain(row: Mapping[str, Any]) -> str:
    """Format how many results have the same bits in plain sessions of both files; "" if not compared."""
    if "plain_outputs" not in row:
        return ""
    off = len(row["plain_differ"]) + len(row["plain_unstable"])
    unstable = f" ({len(row['plain_unstable'])} unstable)" if row["plain_unstable"] else ""
    return f"{row['plain_outputs'] - off} of {row['plain_outputs']}{unstable}"


def short(text: str, most: int = 300) -> str:
    """Return the first line of a message, as a cell of a table."""
    first = text.splitlines()[0].replace("|", "\\|")
    return first if len(first) < most else first[: most - 3] + "..."

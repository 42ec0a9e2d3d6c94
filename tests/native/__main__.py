"""Random streams against the library's waits: `python -m tests.native` writes `reports/races.md`.

The programs of `test_streams.py`, more of them: both backends and both pools; the CUDA backend with each
of its waits left out, and without the pool's wait for the device; then all of it under ThreadSanitizer.
Nothing of it is a claim about a GPU: its driver is one of this folder, a thread for each stream.
"""

from __future__ import annotations

import re
import signal
import sys
import tempfile
from pathlib import Path

from tests.native.fakes import compiled_sources
from tests.native.test_streams import WAITS, Built, built

PAGE = Path(__file__).parents[2] / "reports" / "races.md"
KINDS = {
    "cuda": "CUDA, one stream of operations",
    "threads": "CUDA, two threads with a stream each",
    "cpu": "CPU, to memory",
    "disk": "CPU, to a file",
}
RIGHT, MUTANTS, SANITIZED = 60, 30, 12
"""Programs of a row; a row has a minute."""
_SANITIZED, _SANITIZE = "ThreadSanitizer", "-fsanitize=thread"


def main() -> int:
    """Run all, and write the page."""
    rows: list[tuple[str, ...]] = []
    with tempfile.TemporaryDirectory() as folder:
        plain, checked = _built(Path(folder) / "plain"), _built(Path(folder) / "checked", _SANITIZE)
        rows += [_row(plain, RIGHT, KINDS[kind], kind) for kind in KINDS]
        rows += [_row(plain, MUTANTS, f"CUDA without: {WAITS[i]}", mutant=i) for i in WAITS]
        no_wait = {"FAKE_DRIVER_NO_WAIT": "1"}
        rows.append(
            _row(plain, MUTANTS, "CUDA, threads; the pool waits for nothing", "threads", **no_wait)
        )
        rows += [_row(checked, SANITIZED, f"{_SANITIZED}: {KINDS[kind]}", kind) for kind in KINDS]
        rows.append(_row(checked, 3, f"{_SANITIZED}: CUDA without: {WAITS[2]}", mutant=2))
    lines = (f"| {' | '.join(row)} |\n" for row in rows)
    PAGE.write_text(_HEAD + "".join(lines), encoding="utf-8")
    return 0


def _built(folder: Path, *sanitize: str) -> Built:
    folder.mkdir()
    return built(folder, compiled_sources(folder / "sources.o", *sanitize), *sanitize)


def _row(
    build: Built, programs: int, name: str, kind: str = "cuda", mutant: int = 0, **more: str
) -> tuple[str, ...]:
    """What some programs counted; reports of races, where ThreadSanitizer looked for them."""
    done = build.run(programs, kind, mutant, **more)
    races = str(done.stderr.count(f"WARNING: {_SANITIZED}")) if name.startswith(_SANITIZED) else "-"
    if done.returncode < 0:
        ended = f"ended by {signal.Signals(-done.returncode).name}"
        return name, str(programs), "-", "-", ended, races
    swaps, checks, wrong, _ = re.findall(r"\d+", done.stdout)
    return name, str(programs), f"{int(swaps):,}", f"{int(checks):,}", f"{int(wrong):,}", races


_HEAD = """# Waits and races

Written by `python -m tests.native`. Random programs of operations, swaps and reused buffers, in a pool
without a byte to spare, with slow and jittery copies; every tensor is checked when it is read. *Wrong*:
checks that found other bytes. CUDA's backend and its pool run on a stand-in for the driver, with a thread
for each stream: nothing here is a claim about a GPU. Rows *without* are controls: the library with one
wait left out.

| | programs | swaps | checks | wrong | races reported |
|---|---:|---:|---:|---:|---:|
"""


if __name__ == "__main__":
    sys.exit(main())

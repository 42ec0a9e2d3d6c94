"""How long the command line takes to answer: `python -m reports.speed` writes `speed.md`.

A DenseNet-121 training graph of over 5,000 nodes is built (PyTorch needed) and analysed.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

from models.build import main as build

FOLDER = Path(__file__).parent
RUNS = 3


def seconds(*arguments: str) -> float:
    """Least wall time of a few runs of `planner ARGUMENTS`."""
    command = [sys.executable, "-c", "from planner.cli.main import run; run()", *arguments]
    times = []
    for _ in range(RUNS):
        start = time.perf_counter()
        subprocess.run(command, check=True, capture_output=True)
        times.append(time.perf_counter() - start)
    return min(times)


def main() -> None:
    """Measure and write the table."""
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "densenet121.onnx"
        build(["densenet121", "--batch", "2", "--image-size", "64", "-o", str(model)])
        import onnx

        nodes = len(onnx.load(model).graph.node)
        rows = [
            ("`planner --help`", seconds("--help")),
            (
                f"`planner analyze`, DenseNet-121 training graph, {nodes:,} nodes",
                seconds("analyze", str(model), "--json"),
            ),
        ]
    lines = [
        "# Time to answer",
        "",
        f"The least of {RUNS} runs; written by `python -m reports.speed`.",
        "",
    ]
    lines += ["| command | seconds |", "|---|---:|"]
    lines += [f"| {name} | {value:.2f} |" for name, value in rows]
    (FOLDER / "speed.md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


if __name__ == "__main__":
    main()

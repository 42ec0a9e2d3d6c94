"""Write `reports/training.md`: what is covered, and 100 steps of four nets.

    python -m reports.training .venv-training/bin/python [-o reports/training.md]

Runs in the ordinary environment, with PyTorch; the first argument is the Python of the one with
onnxruntime-training (`models/artifacts`). Takes about ten minutes on two cores.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from reports.training.coverage import Covered, Key, covered
from reports.training.exported import exported_operators

ROOT = Path(__file__).parents[2]
_ONNX = ("", "ai.onnx")


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m reports.training")
    parser.add_argument("python", type=Path, help="Python of the environment with the build")
    parser.add_argument("-o", "--output", type=Path, default=ROOT / "reports" / "training.md")
    options = parser.parse_args(arguments)
    artifacts = _in(options.python, "reports.training.coverage")
    exported = exported_operators()
    runs = _in(options.python, "reports.training.runs")
    options.output.write_text(_page(artifacts, exported, runs), encoding="utf-8")


def _in(python: Path, module: str) -> Any:
    """The JSON that a program prints in its last line, run in another environment."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [str(python.absolute()), "-m", module]
    done = subprocess.run(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"{module} failed in {python}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def _page(
    artifacts: Mapping[str, Sequence[Sequence[Any]]],
    exported: Mapping[str, Sequence[Key]],
    runs: Sequence[Mapping[str, Any]],
) -> str:
    version = runs[0]["ort_version"]
    lines = [
        "# onnxruntime-training",
        "",
        "Written by `python -m reports.training`. Both tables: CPU, float32.",
        "",
        f"## 100 steps with the planned training model (onnxruntime-training-cpu {version})",
        "",
        "`models/scripts/train_artifacts.py`, unchanged, with the original training model and with the",
        "one planned to 60% of its peak; `checkpoint`, `eval_model.onnx` and `optimizer_model.onnx` are",
        "the same. One thread: with several, the build's own GatherGrad adds in any order. Live bytes",
        "are replayed from the order in the build's profile, parameters and accumulation buffers",
        "included. Least is the least budget with which the model ran in that build: graph inputs,",
        "initializers, and the smallest arena, found by trial. Plans use order and recompute. Time: the",
        "faster of two turns of 100 steps each, on two cores that others used too.",
        "",
        *_run_table(runs),
        "",
        "## Operator coverage",
        "",
        "Operators in the graphs as generated and as ONNX Runtime optimizes them. A rule is there for:",
        "the shape of its results, its arithmetic, whether it may run twice, and which buffers its",
        "kernel shares.",
        "",
        *_coverage_table("Training artifacts", artifacts),
        "",
        *_coverage_table("PyTorch", exported),
        "",
        *_operators({*_keys(artifacts), *_keys(exported)}),
        "",
    ]
    return "\n".join(lines)


def _run_table(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    rows = [
        "| net | nodes | loss, step 1 | step 100 | losses identical | checkpoint and export identical "
        "| gradients, statistics and loss identical | live MiB | after | share | least MiB | after "
        "| recomputed | order as planned | time |",
        "|---|---:|---:|---:|---|---|---:|---:|---:|---:|---:|---:|---:|---|---:|",
    ]
    for run in runs:
        before, after = run["live_bytes"]
        least = run["arena_bytes"]
        rows.append(
            f"| {run['net']} | {run['nodes']} | {run['first_loss']:.4f} | {run['last_loss']:.4f} "
            f"| {_yes(run['losses_identical'])} | {_yes(run['files_identical'])} "
            f"| {run['identical_outputs']} of {run['outputs']} "
            f"| {before / 2**20:.2f} | {after / 2**20:.2f} | {after / before:.1%} "
            f"| {least[0] / 2**20:.2f} | {least[1] / 2**20:.2f} | {run['recomputed']} "
            f"| {_yes(run['order'])} "
            f"| x{run['time_ratio']:.2f} |"
        )
    return rows


def _coverage_table(route: str, graphs: Mapping[str, Sequence[Sequence[Any]]]) -> list[str]:
    rows = [f"| {route} | operators | shape | arithmetic | effect | in place |"]
    rows.append("|---|---:|---:|---:|---:|---:|")
    for name, keys in graphs.items():
        rows.append(f"| {name} | {_counts(_distinct(keys))} |")
    rows.append(f"| all | {_counts(_distinct(_keys(graphs)))} |")
    return rows


def _counts(found: Sequence[Covered]) -> str:
    parts = ("shape", "flops", "effect", "in_place")
    return " | ".join(
        [str(len(found)), *(str(sum(getattr(c, part) for c in found)) for part in parts)]
    )


def _operators(keys: set[Key]) -> list[str]:
    """Every operator, and what is missing of any."""
    found = _distinct(keys)
    missing = [c for c in found if not c.all]
    names = ", ".join(f"`{_name(c)}`" for c in found if c.all)
    lines = [f"Covered: {names}."]
    if missing:
        lines += ["", "Not covered: " + ", ".join(f"`{_name(c)}`" for c in missing) + "."]
    return lines


def _keys(graphs: Mapping[str, Sequence[Sequence[Any]]]) -> list[Key]:
    return [(str(d), str(op), int(v)) for keys in graphs.values() for d, op, v in keys]


def _distinct(keys: Any) -> list[Covered]:
    """By name; an operator of two versions must be covered in both."""
    found: dict[tuple[str, str], Covered] = {}
    for key in sorted((str(d), str(op), int(v)) for d, op, v in keys):
        known, entry = found.get(key[:2]), covered(key)
        if known is None or known.all:
            found[key[:2]] = entry
    return list(found.values())


def _name(entry: Covered) -> str:
    return entry.op_type if entry.domain in _ONNX else f"{entry.domain}.{entry.op_type}"


def _yes(value: bool) -> str:
    return "yes" if value else "no"


if __name__ == "__main__":
    main()

"""Training scripts with the original and the rewritten model: `python -m reports.scripts`.

Each network of `models.scripts.train_torch` is exported, planned, and trained for 100 steps by that
script, in processes of their own, first on one model, then on the other, alternating three times.
The losses of all runs are compared bit for bit; the step's time is the median of each run, and the
ratio that of the smallest medians. Writes `scripts.md` beside this file.
"""

from __future__ import annotations

import argparse
import platform
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import onnxruntime

from planner import optimize
from planner.results import OptimizeResult

BUDGETS = {"mlp": "60%", "resnet18": "60%", "encoder": "60%", "gpt": "60%"}
REPORT = Path(__file__).with_suffix(".md")
_ROUNDS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run of the script: its losses as printed, and the median step."""

    losses: tuple[str, ...]
    step_s: float


def script(*arguments: str) -> list[str]:
    """Run the training script; the lines that it prints."""
    command = [sys.executable, "-m", "models.scripts.train_torch", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def train(net: str, model: Path, steps: int) -> Run:
    """Train on a model."""
    *losses, last = script(net, "--model", str(model), "--steps", str(steps))
    return Run(losses=tuple(losses), step_s=float(last.split()[1]))


def peak_mib(result: OptimizeResult, model: str) -> float:
    """Live bytes as ONNX Runtime's memory events give them."""
    assert result.verification is not None
    found = [
        check.live_bytes
        for check in result.verification.memory
        if (check.model, check.options, check.how) == (model, "recommended", "measured")
    ]
    return found[0] / 2**20


def row(net: str, budget: str, steps: int, limit_s: float, folder: Path) -> str:
    """Export, plan, train on both; one row of the table."""
    original, rewritten = folder / f"{net}.onnx", folder / f"{net}.planned.onnx"
    script(net, "--write", str(original))
    result = optimize(
        original,
        budget=budget,
        output=rewritten,
        swap="none",
        time_limit_s=limit_s,
        verify="thorough",
    )
    pairs = [(train(net, original, steps), train(net, rewritten, steps)) for _ in range(_ROUNDS)]
    curves = {run.losses for pair in pairs for run in pair}
    same = "yes" if len(curves) == 1 and len(next(iter(curves))) == steps else "**no**"
    ratio = min(b.step_s for _, b in pairs) / min(a.step_s for a, _ in pairs)
    losses = pairs[0][0].losses
    before, after = (peak_mib(result, model) for model in ("original", "rewritten"))
    first, last = float.fromhex(losses[0]), float.fromhex(losses[-1])
    return (
        f"| {net} | {len(result.before.graph.operations):,} | {budget} | {before:.2f} → {after:.2f} "
        f"({after / before:.1%}) | {first:.3f} → {last:.3f} | {same} | {ratio:.2f} |"
    )


def main() -> None:
    """Write the report."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--time-limit", type=float, default=20.0, help="seconds of each search")
    parser.add_argument("nets", nargs="*", default=list(BUDGETS))
    args = parser.parse_args()
    lines = [
        "# Training scripts, unchanged, on rewritten models",
        "",
        f"`python -m reports.scripts`: `models/scripts/train_torch.py`, {args.steps} steps on real "
        "data (scikit-learn's digits; the text of Python's help), one thread, the update in numpy. "
        f"onnxruntime {onnxruntime.__version__}, {platform.machine()}; plans without swaps, "
        f"{args.time_limit:g} s of search.",
        "",
        "Peaks are live bytes measured by ONNX Runtime's memory events. *Losses identical*: every "
        f"loss of all {2 * _ROUNDS} runs, bit for bit. The ratio is that of the smallest median "
        "step times; runs alternate, and what else ran on the machine is in them.",
        "",
        "| net | operations | budget | peak MiB, before → after | loss, first → last | losses "
        "identical | step time ratio |",
        "|---|---:|---:|---|---|---|---:|",
    ]
    with tempfile.TemporaryDirectory() as folder:
        for net in args.nets:
            lines.append(row(net, BUDGETS[net], args.steps, args.time_limit, Path(folder)))
            print(lines[-1], flush=True)
    REPORT.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

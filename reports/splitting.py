"""What chunks of rows are worth: least peaks and plans below what one operation holds.

    python -m reports.splitting                every network
    python -m reports.splitting gpt_loss       these

For each network, the least peak that is found without chunks, whatever lives on the host, and what no
plan without them can go below. Then `--split auto` at shares of that least peak, down to the first at
which no plan is found. What is small enough is run and verified in full: which outputs are bit-identical,
and how far the others are off. Rows go to `splitting.json` beside this file, each as it is measured, and
`splitting.md` is written from them.
"""

from __future__ import annotations

import argparse
import json
import platform
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import onnxruntime as ort

from planner.errors import InfeasibleBudgetError
from planner.pipeline.answer.optimizing import OptimizeJob
from planner.pipeline.levers.choose import plan_with
from planner.pipeline.levers.lever import Means
from planner.pipeline.levers.table import levers_for
from planner.pipeline.prepare.limiting import limited
from planner.pipeline.prepare.prepared import prepare, silent
from planner.pipeline.prepare.settings import settings_of
from planner.pipeline.record.files import Files
from planner.request import Levers, Limits, Request

FOLDER = Path(__file__).parent
RESULT, PAGE = FOLDER / "splitting.json", FOLDER / "splitting.md"
MIB = 2**20
SHARES = (0.7, 0.5, 0.35)
SECONDS = 12.0

BUILT: Mapping[str, str] = {
    "gpt_loss": "gpt2 --batch 4 --seq 64 --width 64 --layers 2 --heads 4 --vocabulary 8000",
    "gpt_scores": "gpt2 --batch 1 --seq 512 --width 64 --layers 2 --heads 4 --vocabulary 256",
    "gpt2_small": "gpt2",
}
"""Networks that `models.build` makes."""

WHAT: Mapping[str, str] = {
    "gpt_loss": "the loss over 8,000 tokens, width 64",
    "gpt_scores": "attention scores, 512 tokens, width 64",
    "feedforward": "two feed-forwards, 64 to 4,096 and back",
    "gpt2_small": "GPT-2 small, 4 × 512 tokens: the loss over 50,257; planned only",
}

PLANNED_ONLY = ("gpt2_small",)
"""What takes several GB and minutes to run: planned at the middle share alone, in three times as long."""


def network(name: str, folder: Path) -> Path:
    """The file of a network, built."""
    path = folder / f"{name}.onnx"
    if name == "feedforward":
        _feedforward(path)
        return path
    from models.build import main as build

    net, *sizes = BUILT[name].split()
    build([net, "-o", str(path), *sizes, "--sidecar"])
    return path


def _feedforward(path: Path) -> None:
    """Two wide feed-forwards with residuals, and their gradients."""
    import torch
    from torch import nn

    from planner import export_training_graph

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up = nn.ModuleList(nn.Linear(64, 4096) for _ in range(2))
            self.down = nn.ModuleList(nn.Linear(4096, 64) for _ in range(2))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for up, down in zip(self.up, self.down, strict=True):
                x = x + down(nn.functional.gelu(up(x)))
            return x

    torch.manual_seed(0)
    x, y = torch.randn(512, 64), torch.randn(512, 64)
    export_training_graph(Net(), (x,), nn.functional.mse_loss, targets=(y,)).save(path)


def request_for(path: Path, budget: int, *, split: bool, seconds: float) -> Request:
    """A plan with anything on the host that helps."""
    return Request(
        model=path,
        budget=f"{budget}B",
        levers=Levers(resident="auto", split="auto" if split else "none"),
        limits=Limits(time_limit_s=seconds),
    )


def planned_alone(request: Request) -> dict[str, Any]:
    """The figures of a plan that is not run."""
    prepared = limited(prepare(request))

    levers, prepared = levers_for(prepared)
    planned = plan_with(levers, prepared, settings_of(prepared), Means())
    prepared = planned.prepared
    regions = [region for together in prepared.split for region in together]
    return {
        "peak_bytes": planned.timeline.peak_bytes,
        "time_ratio": planned.time_us / prepared.baseline.time_us,
        "regions": len(regions),
        "chunks": sorted({region.seed.chunks for region in regions}),
        "nodes": sum(len(region.ways) for region in regions),
        "numbers": prepared.numbers,
    }


def verified(request: Request, folder: Path) -> dict[str, Any]:
    """The figures of a plan that is run beside the original."""
    files = Files(model=folder / "planned.onnx")
    result = OptimizeJob(
        request=request, files=files, verify=True, search_context=None, progress=silent
    ).run()
    plan, verification = result.plan, result.verification
    assert verification is not None and verification.passed
    regions = [region for together in plan.split for region in together]
    return {
        "peak_bytes": plan.planned.peak_bytes,
        "time_ratio": plan.planned.time_us / plan.baseline.time_us,
        "regions": len(regions),
        "chunks": sorted({region.chunks for region in regions}),
        "nodes": sum(len(region.nodes) for region in regions),
        "numbers": plan.numbers,
        "outputs": len(verification.outputs),
        "identical": sum(output.identical for output in verification.outputs),
        "rms_rel_diff": max(output.rms_rel_diff for output in verification.outputs),
        "measured_ratio": verification.time.ratio if verification.time is not None else None,
    }


def measure(name: str, folder: Path, seconds: float) -> dict[str, Any]:
    """One network's row."""
    began = time.monotonic()
    path = network(name, folder)
    prepared = prepare(Request(model=path))
    row: dict[str, Any] = {
        "name": name,
        "operations": len(prepared.graph.operations),
        "baseline_bytes": prepared.baseline.peak_bytes,
    }
    try:
        planned_alone(request_for(path, 1, split=False, seconds=seconds))
        raise AssertionError("one byte is enough")
    except InfeasibleBudgetError as error:
        row |= {"least_bytes": error.least_peak_bytes, "bound_bytes": error.bound_bytes}
    row["plans"] = []
    is_large = name in PLANNED_ONLY
    seconds *= 3 if is_large else 1
    for share in SHARES[1:2] if is_large else SHARES:
        request = request_for(path, int(share * row["least_bytes"]), split=True, seconds=seconds)
        plan: dict[str, Any] = {"share": share}
        try:
            plan |= planned_alone(request) if is_large else verified(request, folder)
        except InfeasibleBudgetError:
            row["plans"].append(plan)
            break
        row["plans"].append(plan)
    row["seconds"] = time.monotonic() - began
    return row


def markdown(found: Mapping[str, Any]) -> str:
    """The page of all rows."""
    lines = [
        "# Chunks of rows",
        "",
        "`python -m reports.splitting`, onnxruntime "
        f"{found['onnxruntime']}, {found['machine']}, {found['seconds_each']:g} s for each search. "
        "Inputs, parameters and gradients live on the host where that helps; recompute and swaps are "
        "allowed.",
        "",
        "*least without*: the least peak found without chunks; *none below*: what one operation holds, "
        "below which no plan without chunks can be. Then `--split auto` within shares of it. *time*: "
        "predicted, by the time of the model as it is. *off*: root mean square of the difference, by "
        "that of the output, where it is largest.",
        "",
        "| network | least without (none below) | budget | peak | chunks | nodes in chunks | time "
        "| bit-identical | off |",
        "|---|---:|---:|---:|---|---:|---:|---:|---:|",
    ]
    for row in found["rows"]:
        for i, plan in enumerate(row["plans"]):
            head = f"{row['name']}: {WHAT[row['name']]}" if not i else ""
            least = f"{_mib(row['least_bytes'])} ({_mib(row['bound_bytes'])})" if not i else ""
            lines.append(f"| {head} | {least} | {plan['share']:.0%} | {_plan(plan)} |")
    lines += [
        "",
        "What is not run (*planned only*) has no outputs to compare. The rows say what was found on "
        "this machine in that time, not what is possible.",
        "",
    ]
    return "\n".join(lines)


def _plan(plan: Mapping[str, Any]) -> str:
    if "peak_bytes" not in plan:
        return "no plan found | | | | | "
    chunks = ", ".join(map(str, plan["chunks"])) or "none"
    same, off = "not run", ""
    if "outputs" in plan:
        same = f"{plan['identical']} of {plan['outputs']}"
        off = f"{plan['rms_rel_diff']:.1e}"
    cells = [
        _mib(plan["peak_bytes"]),
        f"{chunks} ({plan['regions']} regions)",
        f"{plan['nodes']:,}",
    ]
    return " | ".join([*cells, f"{plan['time_ratio']:.2f}", same, off])


def _mib(size: int) -> str:
    return f"{size / MIB:,.1f} MiB" if size >= 10 * MIB else f"{size / MIB:.2f} MiB"


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, and write both files."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("names", nargs="*", choices=[*WHAT, []], metavar="NAME")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="for each search")
    options = parser.parse_args(arguments)
    old = json.loads(RESULT.read_text(encoding="utf-8"))["rows"] if RESULT.exists() else []
    rows = {row["name"]: row for row in old}
    for name in options.names or WHAT:
        with tempfile.TemporaryDirectory() as folder:
            rows[name] = measure(name, Path(folder), options.seconds)
        print(json.dumps(rows[name]))
        found = {
            "onnxruntime": ort.__version__,
            "machine": f"{platform.machine()} CPU",
            "seconds_each": options.seconds,
            "rows": [rows[n] for n in WHAT if n in rows],
        }
        RESULT.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        PAGE.write_text(markdown(found), encoding="utf-8")


if __name__ == "__main__":
    main()

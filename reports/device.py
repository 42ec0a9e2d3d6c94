"""Plans on a device with a memory of its own: does what was planned happen there?

    python -m reports.device                       WebGPU: software Vulkan where there is no GPU
    python -m reports.device cuda                  the same for CUDA, in calls of under 8 minutes each
    python -m reports.device cuda --models gpt --percents 60

The samples of models/zoo, and a small BERT, U-Net and vision transformer that `models` builds here, at
80%, 60% and 40% of their peak (or 5% above the least peak found), with swaps where they pay and with
swaps only. Each row plans for the device, and runs the original and the rewritten model on it. What the
original does is measured once for a model. Writes `device.json` and `device.md` in this folder, a row at
a time (`device_cuda.*` for CUDA); rows that are there stay, unless they are asked for again, and
`--minutes` ends the program before that time is up.
"""

from __future__ import annotations

import platform
import tempfile
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from planner import optimize
from planner.cost.measured import device_names
from planner.errors import PlannerError
from planner.pipeline.prepare.prepared import Prepared, prepare
from planner.request import Request
from planner.results import OptimizeResult
from planner.results.verification import Verification
from planner.runtime.device.reference import Reference, Side, reference
from planner.runtime.device.verify import DeviceJob
from planner.runtime.feeds.inputs import make_inputs
from planner.targets import target_named
from reports.shared import FOLDER, ZOO, Row, line, mib, program, read_rows, write_rows
from reports.verified import at_or_above_least

BUILT = {
    "bert": "--batch 4 --seq 32 --width 64 --layers 2 --heads 2 --vocabulary 512",
    "unet": "--batch 2 --width 8 --layers 2 --image-size 32",
    "vit": "--batch 4 --image-size 64 --width 64 --layers 2 --heads 2 --classes 10",
}
"""Networks to build here, with the arguments of `python -m models.build`."""

CUDA_MINUTES = 7.5
"""The longest call on a GPU, which may be lent for a short time; the next call continues."""

MODELS = ("mlp_adamw", "bert", "vit", "unet", "gpt", "resnet18")


class Bench:
    """One model: its file, and the original's results on the device, computed when needed."""

    def __init__(self, name: str, device: str, folder: Path, hardware: str = "cpu") -> None:
        self.name, self.device, self.hardware = name, device, hardware
        self.path = ZOO / f"{name}.onnx"
        if name in BUILT:
            self.path = folder / f"{name}.onnx"
        if not self.path.exists():
            from models.build import main as build

            build([name, *BUILT[name].split(), "--sidecar", "-o", str(self.path)])
        self.inputs, self.source = make_inputs(self.path, 0, {}, None)
        self._prepared: Prepared | None = None
        self._reference: Reference | None = None

    @property
    def prepared(self) -> Prepared:
        """The original, placed on the device."""
        if self._prepared is None:
            self._prepared = prepare(Request(model=self.path, device=self.device))
        return self._prepared

    @property
    def original(self) -> Side:
        """The original, as a session of default options runs it on the device."""
        prepared = self.prepared
        return Side(
            path=self.path,
            graph=prepared.baseline.graph,
            order=prepared.baseline.order,
            level=prepared.level,
            renamed=prepared.renamed,
        )

    def job(self, result: OptimizeResult) -> DeviceJob:
        """Return the verification job of one plan."""
        assert result.output_path is not None
        if self._reference is None:
            self._reference = reference(self.prepared.target, self.original, self.inputs)
        plan, after = result.plan, result.after
        return DeviceJob(
            target=self.prepared.target,
            original=self.original,
            rewritten=Side(
                path=result.output_path,
                graph=after.graph,
                order=after.timeline.order,
                level="all" if plan.ort_optimized else "disabled",
            ),
            inputs=self.inputs,
            inputs_source=self.source,
            budget_bytes=plan.budget_bytes,
            reference=self._reference,
        )


def run(
    bench: Bench, percent: int, swap: str, time_limit_s: float, keep: Path | None = None
) -> Row:
    """One row: optimize at a budget, or just above the least feasible one, and verify; the rewritten
    model stays in the folder `keep`."""
    row: Row = {"model": bench.name, "asked": f"{percent}%", "swap": swap}
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        output = (keep or Path(folder)) / f"{bench.name}_{percent}_{swap}.planned.onnx"

        def attempt(budget: str) -> OptimizeResult:
            return optimize(
                bench.path,
                budget=budget,
                output=output,
                swap=swap,  # type: ignore[arg-type]
                device=bench.device,  # type: ignore[arg-type]
                hardware=bench.hardware,
                time_limit_s=time_limit_s,
                verify=False,
                force=True,
            )

        try:
            result = at_or_above_least(attempt, percent, row)
            row |= _planned(result)
            row |= _verified(bench.job(result).run())
        except PlannerError as error:
            return {**row, "error": str(error)}
    return {**row, "wall_s": round(time.monotonic() - start, 1)}


def _planned(result: OptimizeResult) -> Row:
    plan, graph = result.plan, result.after.graph
    return {
        "nodes": len(result.before.graph.operations),
        "on_cpu": sum(op.on_cpu for op in result.before.graph.operations),
        "anchors": sum(op.role.value == "anchor" for op in graph.operations),
        "budget_bytes": plan.budget_bytes,
        "baseline_bytes": plan.baseline.peak_bytes,
        "predicted_bytes": plan.planned.peak_bytes,
        "recomputed_ops": plan.planned.recomputed_ops,
        "swapped_tensors": plan.planned.swapped_tensors,
        "predicted_ratio": plan.planned.time_us / plan.baseline.time_us,
    }


def _verified(check: Verification) -> Row:
    memory = {m.model: m for m in check.memory}
    caps = {c.model: c for c in check.caps}
    assert check.copies is not None
    return {
        "passed": check.passed,
        "failures": list(check.failures),
        "notes": list(check.notes),
        "outputs": len(check.outputs),
        "identical": sum(o.identical for o in check.outputs),
        "orders": [[o.level, o.queue, o.equal] for o in check.orders],
        "copies": {
            "planned": check.copies.planned,
            "planned_bytes": check.copies.planned_bytes,
            "ran": check.copies.ran,
            "extra": [list(e) for e in check.copies.extra],
        },
        "live": {m: [c.predicted_live_bytes, c.live_bytes] for m, c in memory.items()},
        "held": {m: [c.predicted_held_bytes, c.held_bytes] for m, c in memory.items()},
        "held_by_default": {
            c.model: [c.predicted_held_bytes, c.held_bytes]
            for c in check.memory
            if c.options == "default"
        },
        "cap": {
            m: [c.cap_bytes, c.passed, c.expected, c.over_budget_bytes] for m, c in caps.items()
        },
        "time_ratio": check.time.ratio if check.time else None,
        "original_us": min(check.time.original_us) if check.time else None,
        "ort_version": check.ort_version,
        "card": ", ".join(device_names()),
    }


def holds(row: Mapping[str, Any]) -> bool:
    """Tell whether everything that a row claims was observed."""
    return bool(row.get("passed")) and all(c[2] in (None, c[1]) for c in row["cap"].values())


def markdown(rows: list[Row], device: str, time_limit_s: float) -> str:
    """Return the table."""
    target = target_named(device)
    ort = next((r["ort_version"] for r in rows if "ort_version" in r), "?")
    count = sum(holds(r) for r in rows)
    lines = [
        f"# Plans on {target.title}",
        "",
        f"onnxruntime {ort}, {target.provider}, {platform.machine()}; written by `python -m "
        f"reports.device{'' if device == 'webgpu' else ' ' + device}` (time limit {time_limit_s:g} s a "
        "plan). " + _where(device),
        "",
        f"**{count} of {len(rows)} rows hold**: the rewritten model loads, each queue runs its nodes in "
        "the planned order, every planned copy runs and no other, every output is bit-identical "
        "wherever the original is to itself, and the cap does what it should.",
        "",
        "- *budget*: of the peak of live bytes on the device in ONNX Runtime's default order. In "
        "brackets what was asked where no plan met it; the budget is then 5% above the least peak found.",
        "- *nodes (CPU)*: of the graph that the provider runs, its borders' copies among them; in "
        "brackets those that it leaves to the CPU.",
        "- *live*: bytes of tensors on the device at the fullest moment, replayed from the executed "
        "order, before -> after; in brackets the plan's prediction.",
        "- *device*: bytes that the device held, before -> after, counted; in brackets predicted.",
        "- *copies*: planned and run, and MiB; *extra*: run and not planned.",
        "- *outputs*: bit-identical to the original's on the device, of all; the others are those in "
        "which the original differs from itself from run to run, or which come of operators that add "
        "in any order there.",
        "- *order*: device's queue, CPU's queue, and whether sessions leave the file's nodes alone with "
        "optimizations off and extended.",
        _CAPS[device],
        "",
        "| model | nodes (CPU) | swaps | budget | swapped | recomputed | anchors | live MiB | device MiB "
        "| copies | extra | outputs | order | cap |",
        "|---|---:|---|---|---:|---:|---:|---|---|---:|---:|---:|---|---|",
    ]
    lines += [_line(row) for row in rows]
    return "\n".join(lines) + "\n"


_CAPS = {
    "webgpu": "- *cap*: at the bytes that the rewritten model held: original / rewritten.",
    "cuda": "- *cap*: in an arena of the budget, or of so much more as is said: original / rewritten.",
}


def _where(device: str) -> str:
    if device == "cuda":
        return "On one H200, with memory pattern and reuse off; [cuda.md](cuda.md) says more."
    return (
        "Software Vulkan (SwiftShader) behind a driver that counts every storage buffer and refuses "
        "what exceeds a cap: memory and copies are real, times are not. `preferredLayout` is NCHW."
    )


_mib = partial(mib, form=".2f", none="?")


def _line(row: Row) -> str:
    if "passed" not in row:
        return (
            f"| {row['model']} | | {row['swap']} | {row['asked']} | {row.get('error')} |" + " |" * 9
        )
    share = 100 * row["budget_bytes"] / row["baseline_bytes"]
    asked = f" ({row['asked']})" if "least_bound_bytes" in row else ""
    live, held, copies = row["live"], row["held"], row["copies"]
    word = {True: "runs", False: "fails"}
    cap = (
        " / ".join(word[row["cap"][m][1]] for m in ("original", "rewritten")) if row["cap"] else ""
    )
    if row["cap"] and (over := sum(row["cap"]["rewritten"][3:])):
        cap += f" at {over / row['budget_bytes']:+.0%}"
    wrong = [f"{level} {queue}" for level, queue, equal in row["orders"] if not equal]
    cells = (
        row["model"],
        f"{row['nodes']} ({row['on_cpu']})",
        row["swap"],
        f"{share:.1f}%{asked}",
        row["swapped_tensors"],
        row["recomputed_ops"],
        row["anchors"],
        f"{_mib(live['original'][1])} -> {_mib(live['rewritten'][1])} "
        f"({_mib(live['rewritten'][0])})",
        f"{_mib(held['original'][1])} ({_mib(held['original'][0])}) -> "
        f"{_mib(held['rewritten'][1])} ({_mib(held['rewritten'][0])})",
        f"{copies['ran']}/{copies['planned']}, {_mib(copies['planned_bytes'])}",
        len(copies["extra"]),
        f"{row['identical']}/{row['outputs']}",
        "as planned" if not wrong else "NOT: " + ", ".join(wrong),
        cap,
    )
    failed = "" if row["passed"] else f" **{row['failures'][0]}**"
    return line(*cells[:-1], f"{cells[-1]}{failed}")


def main() -> None:
    """Run the requested rows; write after each row."""
    parser = program("reports.device", __doc__)
    parser.add_argument("device", nargs="?", default="webgpu", choices=["webgpu", "cuda"])
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=MODELS)
    parser.add_argument("--hardware", default="cpu", help="profile that predicts times")
    parser.add_argument("--percents", type=int, nargs="+", default=[80, 60, 40])
    parser.add_argument("--swaps", nargs="+", default=["auto", "only"])
    parser.add_argument("--time-limit", type=float, default=20.0)
    parser.add_argument("--minutes", type=float, help="no row is begun that may take longer")
    parser.add_argument("--keep", type=Path, help="folder where the rewritten models stay")
    parser.add_argument("--built", type=Path, help="folder of networks that were built before")
    parser.add_argument("--again", action="store_true", help="rows that are there too")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where to write")
    options = parser.parse_args()
    name = "device" if options.device == "webgpu" else f"device_{options.device}"
    path = options.folder / f"{name}.json"
    rows: list[Row] = read_rows(path, [])
    minutes = options.minutes or (CUDA_MINUTES if options.device == "cuda" else float("inf"))
    until, longest_s = time.monotonic() + 60 * minutes, 0.0
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.built or Path(temporary)
        for model in options.models:
            bench: Bench | None = None
            for percent in options.percents:
                for swap in options.swaps:
                    key = (model, f"{percent}%", swap)
                    there = any((r["model"], r["asked"], r["swap"]) == key for r in rows)
                    start = time.monotonic()
                    if (there and not options.again) or start + longest_s > until:
                        continue
                    bench = bench or Bench(model, options.device, folder, options.hardware)
                    row = run(bench, percent, swap, options.time_limit, options.keep)
                    longest_s = max(longest_s, time.monotonic() - start)
                    rows = [r for r in rows if (r["model"], r["asked"], r["swap"]) != key]
                    rows.append(row)
                    rows.sort(key=_place)
                    write_rows(path, rows)
                    text = markdown(rows, options.device, options.time_limit)
                    path.with_suffix(".md").write_text(text, encoding="utf-8")
                    print(_line(row), flush=True)
    text = markdown(rows, options.device, options.time_limit)
    path.with_suffix(".md").write_text(text, encoding="utf-8")


def _place(row: Row) -> tuple[int, int, str]:
    return MODELS.index(row["model"]), -int(row["asked"][:-1]), row["swap"]


if __name__ == "__main__":
    main()

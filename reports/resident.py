"""What living on the host is worth: least peaks, times and training with parameters paged.

    python -m reports.resident                       every network
    python -m reports.resident mlp_adamw gpt_adamw   these
    python -m reports.resident graphs/resnet18.onnx  a file, called by its name
    python -m reports.resident --large               a GPT with 3.2 GiB of parameters in a file

For each network, the least peak that a plan is found for, with everything on the device and with inputs,
initializers and outputs on the host where that pays; the plan at that peak is verified in full. Then
the predicted time at shares of the peak on an A100's profile, and 50 training steps on the CPU with the
original and the rewritten model, bit by bit. Rows go to `resident.json` beside this file, each as it is
measured, and `resident.md` is written from them.
"""

from __future__ import annotations

import argparse
import json
import platform
import resource
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy.typing as npt
import onnxruntime as ort

from planner import optimize
from planner.choices import Feeds, Reside
from planner.errors import InfeasibleBudgetError
from planner.graph.categories import updated_value_of
from planner.results import OptimizeResult
from planner.runtime.feeds.inputs import make_inputs
from reports.resident_large import large, paragraph

FOLDER = Path(__file__).parent
RESULT = FOLDER / "resident.json"
PAGE = FOLDER / "resident.md"
ZOO = FOLDER.parent / "models" / "zoo"
MIB = 2**20
SUFFIX = ".onnx"

BUILT: Mapping[str, str] = {
    "mlp_wide_adamw": "mlp --batch 16 --width 512 --layers 6 --optimizer adamw",
    "gpt_adamw": "gpt2 --batch 1 --seq 64 --width 256 --layers 6 --heads 8 --vocabulary 1000 "
    "--optimizer adamw",
    "resnet18_small": "resnet18 --batch 2 --image-size 64 --width 64 --classes 10",
    "bert_base": "bert",
    "gpt2_small": "gpt2",
}
"""Networks that `models.build` makes, beside the samples of `models/zoo`."""

WEBGPU = {"mlp_adamw": "40%", "gpt": "30%"}
"""Networks that run on the software WebGPU device too, each within this budget."""

TIMED = ("60%", "30%")
HARDWARE = "a100-40gb"
STEPS = 50
LEVERS: Sequence[tuple[str, Reside, Feeds]] = (
    ("device", "device", "host"),
    ("host, fed from the host", "auto", "host"),
    ("host, bound on the device", "auto", "device"),
)


def network(name: str, folder: Path) -> Path:
    """The file of a network, built if it is not a sample or given."""
    if name.endswith(SUFFIX):
        return Path(name)
    if name not in BUILT:
        return ZOO / f"{name}.onnx"
    from models.build import main as build

    path = folder / f"{name}.onnx"
    net, *sizes = BUILT[name].split()
    if build([net, "-o", str(path), "--sidecar", *sizes]):
        raise SystemExit(f"{name} was not built")
    return path


def least(model: Path, folder: Path, resident: Reside, limit_s: float) -> dict[str, Any]:
    """The least peak found, and the plan for it, verified in full."""
    began = time.monotonic()
    try:
        optimize(
            model, budget="1B", swap="auto", resident=resident, time_limit_s=limit_s, dry_run=True
        )
        raise AssertionError("a byte was enough")
    except InfeasibleBudgetError as error:
        found, bound = error.least_peak_bytes, error.bound_bytes
    output = folder / f"{model.stem}.{resident}.onnx"
    result = optimize(
        model,
        budget=f"{found}B",
        swap="auto",
        resident=resident,
        output=output,
        time_limit_s=limit_s,
        verify="thorough",
        force=True,
    )
    row = {"least_bytes": found, "bound_bytes": bound, **figures(result), **verified(result)}
    return {**row, "wall_s": round(time.monotonic() - began, 1), "path": str(output)}


def figures(result: OptimizeResult) -> dict[str, Any]:
    """What a plan comes to."""
    planned, baseline = result.plan.planned, result.plan.baseline
    return {
        "peak_bytes": planned.peak_bytes,
        "baseline_bytes": baseline.peak_bytes,
        "added": planned.time_us / baseline.time_us - 1,
        "paged_tensors": planned.paged_tensors,
        "page_in_bytes": planned.page_in_bytes,
        "page_out_bytes": planned.page_out_bytes,
        "host_bytes": planned.host_bytes,
        "recomputed_ops": planned.recomputed_ops,
        "swapped_tensors": planned.swapped_tensors,
    }


def verified(result: OptimizeResult) -> dict[str, Any]:
    """What ONNX Runtime said of it."""
    check = result.verification
    assert check is not None
    (live,) = (m for m in check.memory if m.model == "rewritten" and m.options == "recommended")
    return {
        "passed": check.passed,
        "outputs": len(check.outputs),
        "identical": sum(o.identical for o in check.outputs),
        "levels": len(check.orders),
        "as_planned": sum(o.equal for o in check.orders),
        "live_predicted_bytes": live.predicted_live_bytes,
        "live_bytes": live.live_bytes,
        "how": live.how,
    }


def timed(model: Path, limit_s: float) -> list[dict[str, Any]]:
    """Predicted times at shares of the peak, by what may live on the host and where it is fed from."""
    rows: list[dict[str, Any]] = []
    for budget in TIMED:
        for title, resident, feeds in LEVERS:
            row: dict[str, Any] = {"budget": budget, "levers": title}
            try:
                result = optimize(
                    model,
                    budget=budget,
                    resident=resident,
                    feeds=feeds,
                    device="cpu",
                    hardware=HARDWARE,
                    time_limit_s=limit_s,
                    dry_run=True,
                )
                row.update(figures(result))
            except InfeasibleBudgetError as error:
                row["least_bytes"] = error.least_peak_bytes
            rows.append(row)
    return rows


Arrays = dict[str, npt.NDArray[Any]]


def train(model: Path, feeds: Arrays, steps: int) -> tuple[list[bytes], Arrays]:
    """(the first output of each step, what the last step made), new values fed back."""
    session = ort.InferenceSession(str(model), providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    feeds = dict(feeds)
    losses: list[bytes] = []
    made: Arrays = {}
    for _ in range(steps):
        made = dict(zip(names, session.run(None, feeds), strict=True))
        losses.append(made[names[0]].tobytes())
        for name, value in made.items():
            source = updated_value_of(name)
            if source in feeds:
                feeds[source] = value
    return losses, made


def trained(original: Path, rewritten: Path) -> dict[str, Any]:
    """Whether training with the two is the same, bit for bit."""
    feeds, _ = make_inputs(original, 0, {}, None)
    losses, last = train(original, feeds, STEPS)
    again, made = train(rewritten, feeds, STEPS)
    return {
        "steps": STEPS,
        "losses": len(set(losses)),
        "equal": sum(a == b for a, b in zip(losses, again, strict=True)),
        "last": len(last),
        "last_equal": sum(last[name].tobytes() == made[name].tobytes() for name in last),
    }


def on_webgpu(model: Path, folder: Path, budget: str, limit_s: float) -> dict[str, Any]:
    """A plan on a device whose memory is its own, its copies counted as they ran."""
    result = optimize(
        model,
        budget=budget,
        device="webgpu",
        resident="auto",
        output=folder / f"{model.stem}.webgpu.onnx",
        time_limit_s=limit_s,
        force=True,
    )
    check = result.verification
    assert check is not None and check.copies is not None
    return {
        "budget": budget,
        **figures(result),
        "passed": check.passed,
        "outputs": len(check.outputs),
        "identical": sum(o.identical for o in check.outputs),
        "copies": check.copies.planned,
        "copies_bytes": check.copies.planned_bytes,
        "ran": check.copies.ran,
        "extra": len(check.copies.extra),
        "caps": {c.model: c.passed for c in check.caps},
        "cap_bytes": check.caps[0].cap_bytes if check.caps else None,
    }


def measure(name: str, limit_s: float) -> dict[str, Any]:
    """One network's row."""
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        model = network(name, folder)
        row: dict[str, Any] = {"network": Path(name).name.removesuffix(SUFFIX)}
        row["device"] = least(model, folder, "device", limit_s)
        row["host"] = least(model, folder, "auto", limit_s)
        row["times"] = timed(model, limit_s)
        if name in WEBGPU:
            row["webgpu"] = on_webgpu(model, folder, WEBGPU[name], limit_s)
        if "adamw" in name:
            row["training"] = trained(model, Path(row["host"]["path"]))
        for side in ("device", "host"):
            del row[side]["path"]
    row["peak_mib_of_planner"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    return row


def page(data: Mapping[str, Any]) -> str:
    """The report."""
    rows = data["rows"]
    lines = [
        "# Parameters, state, gradients on the host",
        "",
        f"onnxruntime {data['ort']}, {data['machine']}; written by `python -m reports.resident`, "
        f"{data['limit_s']:g} s a search. Peaks in MiB, in brackets as a share of the model's own.",
        "",
        "## Least peaks",
        "",
        "The least peak that a plan was found for, and that plan run on ONNX Runtime: outputs "
        "bit-identical to the original's, levels of optimization at which the executed order is the "
        "planned one, live "
        "bytes found (*replayed* from the executed order) and predicted.",
        "",
        "| network | peak | on the device: least | bound | with the host: least | bound | on the host | "
        "outputs | levels | live found = predicted |",
        "|---|---:|---:|---:|---:|---:|---:|---|---|---|",
    ]
    lines += [_least_line(row) for row in rows]
    lines += [
        "",
        "## Predicted times",
        "",
        f"Added to the step of the original on the profile {HARDWARE}, copies on the stream of the "
        "operations. *Fed from the host*: the caller's arrays are copied once in any case, and the "
        "original's step has these copies, too. *Bound on the device*: every copy is an added one.",
        "",
        "| network | budget | everything on the device | host, fed from the host | "
        "host, bound on the device |",
        "|---|---:|---:|---:|---:|",
    ]
    lines += [line for row in rows for line in _time_lines(row)]
    lines += [
        "",
        "## Training",
        "",
        "Steps with the original and with the plan at the least peak, new values fed back.",
        "",
        "| network | steps | different losses | equal bit for bit | last step's outputs equal |",
        "|---|---:|---:|---:|---:|",
    ]
    for row in rows:
        if (t := row.get("training")) is not None:
            lines.append(
                f"| {row['network']} | {t['steps']} | {t['losses']} | {t['equal']} | "
                f"{t['last_equal']} of {t['last']} |"
            )
    lines += [
        "",
        "## On WebGPU",
        "",
        "On software Vulkan, host and device memory apart. *Copies*: that ran as planned, of those "
        "planned, "
        "their bytes, and any that nobody planned. *Cap*: at what the rewritten model held, original and "
        "rewritten.",
        "",
        "| network | budget | peak MiB | outputs bit-identical | copies | MiB | unplanned | cap |",
        "|---|---:|---:|---|---|---:|---:|---|",
    ]
    for row in rows:
        if (w := row.get("webgpu")) is not None:
            caps = ", ".join(
                f"{model} {'runs' if passed else 'fails'}" for model, passed in w["caps"].items()
            )
            lines.append(
                f"| {row['network']} | {w['budget']} | {w['peak_bytes'] / MIB:.2f} | "
                f"{w['identical']} of {w['outputs']} | {w['ran']} of {w['copies']} | "
                f"{w['copies_bytes'] / MIB:.2f} | {w['extra']} | {caps} |"
            )
    if (big := data.get("large")) is not None:
        lines += ["", *paragraph(big)]
    return "\n".join(lines) + "\n"


def _mib(size: int, whole: int) -> str:
    return f"{size / MIB:,.2f} ({100 * size / whole:.1f}%)"


def _least_line(row: Mapping[str, Any]) -> str:
    device, host = row["device"], row["host"]
    whole = host["baseline_bytes"]
    live = f"{host['live_bytes'] / MIB:.3f} = {host['live_predicted_bytes'] / MIB:.3f}"
    return (
        f"| {row['network']} | {whole / MIB:,.2f} | {_mib(device['least_bytes'], whole)} | "
        f"{device['bound_bytes'] / MIB:,.2f} | {_mib(host['least_bytes'], whole)} | "
        f"{host['bound_bytes'] / MIB:,.2f} | {host['host_bytes'] / MIB:,.2f} | "
        f"{host['identical']} of {host['outputs']} | {host['as_planned']} of {host['levels']} | "
        f"{live}, {host['how']} |"
    )


def _time_lines(row: Mapping[str, Any]) -> list[str]:
    lines = []
    for budget in TIMED:
        cells = []
        for title, _, _ in LEVERS:
            (found,) = (r for r in row["times"] if (r["budget"], r["levers"]) == (budget, title))
            cells.append(f"+{100 * found['added']:.2f}%" if "added" in found else "no plan found")
        lines.append(f"| {row['network']} | {budget} | " + " | ".join(cells) + " |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("networks", nargs="*", help="default: all")
    parser.add_argument("--time-limit", type=float, default=30.0)
    parser.add_argument("--large", action="store_true", help="the large one alone")
    options = parser.parse_args()
    known = [*(p.stem for p in sorted(ZOO.glob("*.onnx"))), *BUILT]
    data: dict[str, Any] = {"rows": []}
    if RESULT.exists():
        data = json.loads(RESULT.read_text())
    data.update(ort=ort.__version__, machine=platform.machine(), limit_s=options.time_limit)
    if options.large:
        data["large"] = large(options.time_limit)
        RESULT.write_text(json.dumps(data, indent=1) + "\n")
        PAGE.write_text(page(data))
        print(json.dumps(data["large"]))
        return
    for name in options.networks or known:
        row = measure(name, options.time_limit)
        rows = [r for r in data["rows"] if r["network"] != row["network"]] + [row]
        data["rows"] = sorted(rows, key=lambda r: (*known, r["network"]).index(r["network"]))
        RESULT.write_text(json.dumps(data, indent=1) + "\n")
        PAGE.write_text(page(data))
        print(json.dumps(row)[:600], flush=True)


if __name__ == "__main__":
    main()

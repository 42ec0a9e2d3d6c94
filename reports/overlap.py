"""Copies beside the operations, on the CPU: `python -m reports.overlap [MODEL:PERCENT...]`.

For each sample, budget and link, two plans without recomputation run in turns in one process, with the
original: one whose copies stand between the operations, and one whose copies run beside them, both made
with `planner.native` on a link that is throttled to so many MB/s each way: swaps, and loads and stores of
what lives on the host. Plans are made for that link, with operation times from a profile of ONNX Runtime.
Every output of every step is compared bit for bit.

Writes `overlap.md` and `overlap.json` beside this file.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx_ir as ir
import onnxruntime as ort

from planner import optimize
from planner.errors import InfeasibleBudgetError
from planner.formulate import with_paging
from planner.pipeline.record.rebuild import prepared_for, rebuild
from planner.pipeline.solve.read_back import lowered_as
from planner.plan.problem import Action, ActionKind
from planner.results import OptimizeResult
from planner.runtime.feeds.inputs import make_inputs
from planner.runtime.options import Memory, Opening, stop_spinning
from planner.runtime.profile import create_session
from planner.runtime.swapping import LINK_MBPS
from planner.simulate.waits import paired
from reports.shared import FOLDER, ZOO, Row, program, write_rows

RESULT, PAGE = FOLDER / "overlap.json", FOLDER / "overlap.md"
CASES = tuple(f"{name}:{share}" for name in ("gpt", "mlp_adamw", "resnet18") for share in (60, 40))
LINKS_MBPS = (150, 300, 1000)
ROUNDS, WARM = 15, 2
THREADS = 1
CPU_PROFILE = FOLDER.parent / "planner" / "cost" / "profiles" / "cpu.toml"


def profiled(model: Path, folder: Path) -> Path:
    """Profile some runs of the original."""
    options = Opening(threads=THREADS).options(profile_prefix=folder / "profile")
    session = create_session(model, options)
    feeds, _ = make_inputs(model)
    for _ in range(ROUNDS):
        session.run(None, feeds)
    return Path(session.end_profiling())


def hardware(folder: Path, mbps: int) -> Path:
    """Return the CPU's profile, with a link of the given MB/s each way."""
    text = CPU_PROFILE.read_text(encoding="utf-8")
    for way in ("to", "from"):
        text = text.replace(
            f"copy_{way}_host_bytes_per_s = 1e10", f"copy_{way}_host_bytes_per_s = {mbps}e6"
        )
    path = folder / f"link{mbps}.toml"
    path.write_text(text, encoding="utf-8")
    return path


def made(
    model: Path, folder: Path, copies: str, time_limit_s: float, **options: Any
) -> OptimizeResult:
    """Make a plan without recompute, and its file."""
    return optimize(
        model,
        swap="only",
        copies=copies,  # type: ignore[arg-type]
        output=folder / f"{copies}.onnx",
        plan_path=folder / f"{copies}.plan.json",
        force=True,
        verify=False,
        time_limit_s=time_limit_s,
        **options,
    )


def between(result: OptimizeResult, profile: Path) -> Path:
    """Write a serial plan whose copies the library makes, each waited for at once."""
    assert result.output_path is not None
    plan = result.plan
    with prepared_for(
        result.model_path, replace(plan, hardware="cpu"), profile=profile
    ) as prepared:
        built = rebuild(prepared, plan)
        form = with_paging(built.formulation, prepared.graph)
        stored = {op: t for t, op in form.paging.stored(form.problem).items()}
        scalars = {t for t, of in enumerate(form.tensors) if not prepared.graph.tensors[of].shape}
        given = [  # which the library does not swap
            a for a in built.actions if a.kind is ActionKind.RUN or a.target not in scalars
        ]
        actions: list[Action] = []
        done: set[int] = set()
        for action in paired(form.problem, given, form.paging):
            actions.append(action)
            is_out, target = action.kind is ActionKind.SWAP_OUT, action.target
            of = target if is_out else stored.get(target) if action.kind is ActionKind.RUN else None
            if of is None or of in done:
                continue
            done |= {of} & set(stored.values())  # the one copy of what is stored
            actions.append(Action(kind=ActionKind.SWAP_OUT_DONE, target=of))
        again = lowered_as(
            lambda made: made, prepared, form, actions, order_target=plan.order_target
        )
    path = result.output_path.with_name("between.onnx")
    ir.save(again.model, path)
    return path


def throttled(mbps: int, memory: Memory = "default") -> ort.SessionOptions:
    """Return options of a session, with its link throttled if it has one."""
    entries = ((LINK_MBPS, str(mbps)),)
    options = Opening(memory=memory, threads=THREADS, entries=entries).options()
    stop_spinning(options)
    return options


def in_turns(
    model: Path, sessions: Mapping[str, ort.InferenceSession], steps: int
) -> tuple[dict[str, float], int]:
    """Run steps with new inputs in turns.

    Return each session's least time, over the original's, and in how many steps any session had an
    output with other bits than the original.
    """
    times: dict[str, list[float]] = {name: [] for name in sessions}
    different = 0
    for turn in range(steps):
        feeds, _ = make_inputs(model, seed=turn)
        results: dict[str, list[bytes]] = {}
        for name, session in sorted(sessions.items(), reverse=bool(turn % 2)):
            start = time.perf_counter()
            found = ort.InferenceSession.run(session, None, feeds)  # results stay in a pool
            times[name].append(time.perf_counter() - start)
            results[name] = [array.tobytes() for array in found]
            del found
        different += any(found != results["original"] for found in results.values())
    base_s = min(times.pop("original")[WARM:])
    return {name: min(taken[WARM:]) / base_s for name, taken in times.items()}, different


def measured(model: Path, budget: str, mbps: int, folder: Path, time_limit_s: float) -> Row:
    """Measure one row."""
    profile = profiled(model, folder)
    options: Row = {"budget": budget, "hardware": str(hardware(folder, mbps)), "profile": profile}
    serial, beside = (
        made(model, folder, copies, time_limit_s, device="cpu", **options)
        for copies in ("serial", "overlapped")
    )
    assert beside.output_path is not None
    files = {
        "original": model,
        "serial": between(serial, profile),
        "overlapped": beside.output_path,
    }
    sessions = {
        name: create_session(path, throttled(mbps, "recommended")) for name, path in files.items()
    }
    ratios, different = in_turns(model, sessions, WARM + ROUNDS)
    planned = {"serial": serial.plan, "overlapped": beside.plan}
    return {
        "model": model.stem,
        "budget": budget,
        "mbps": mbps,
        "steps": WARM + ROUNDS,
        "different": different,
        **{
            name: {
                "swaps": plan.planned.swapped_tensors,
                "paged": plan.planned.paged_tensors,
                "copies": (plan.planned.swap_us + plan.planned.page_us) / plan.baseline.time_us,
                "predicted": plan.planned.time_us / plan.baseline.time_us,
                "measured": ratios[name],
            }
            for name, plan in planned.items()
        },
    }


def report(rows: Sequence[Row]) -> str:
    """Return the text of `overlap.md`."""
    lines = [
        "# Copies beside the operations",
        "",
        f"`python -m reports.overlap` wrote this, with onnxruntime {ort.__version__} on the CPU, one",
        "compute thread. Times are ratios to the original's step, the least of steps in turns in one",
        "process; the link is throttled each way, so that copies take no core. Both files recompute",
        "nothing. *on the host*: inputs and outputs that live there, and are loaded and stored. *copies*",
        "is what those of the overlapped plan take, both ways, one after the other.",
        "Predictions rest on operation times from a profile that was taken just before.",
        "",
        f"Of {sum(row['steps'] for row in rows)} steps with new inputs, "
        f"{sum(row['different'] for row in rows)} had an output with other bits in any of both files.",
        "",
        "| model | budget | link, MB/s | swaps | on the host | copies "
        "| between the operations: measured (predicted) | beside them: measured (predicted) |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for row in rows:
        a, b = row["serial"], row["overlapped"]
        lines.append(
            f"| {row['model']} | {row['budget']} | {row['mbps']:,} | {b['swaps']} | {b['paged']} | "
            f"{b['copies']:.2f} | "
            f"{a['measured']:.2f} ({a['predicted']:.2f}) | {b['measured']:.2f} ({b['predicted']:.2f}) |"
        )
    return "\n".join([*lines, "", _WHY])


_WHY = """\
## Why operators of our own

ONNX Runtime can put nodes on streams of their own (`session.node_partition_config_file`), and copies
there are not safe: a buffer is released when its last reader was *issued* (`GenerateDeallocationPlan` in
core/framework/allocation_planner.cc, `RecycleNodeInputs` in core/framework/stream_execution_context.cc),
and the arena hands it to the stream that it was allocated on with no wait (`FindChunkPtr` in
core/framework/bfc_arena.cc). On an H100, 300 of 300 steps of a chain gave other bits so
([cuda.md](cuda.md)).

The operators of `planner.native` are safe by construction. SwapOutDone reads the tensor that SwapOut
copies, so ONNX Runtime keeps it until the copy is done; what SwapIn makes is its own until SwapInDone,
whose output the readers read; what StoreOut writes is an output of the graph, which nothing else reads
before SwapOutDone. Where each stands follows from the plan (`planner/simulate/waits.py`): a
copy out is waited for before the operation that needs its memory, a copy in before its first reader.

On CUDA none of this was run yet.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = program("reports.overlap", __doc__)
    parser.add_argument("models", nargs="*", help="of the samples, gpt:60 say; all at 60 and 40%%")
    parser.add_argument("--time-limit", type=float, default=5.0, help="for each plan, in seconds")
    parser.add_argument("--print", action="store_true", help="print the report, write nothing")
    asked = parser.parse_args(arguments)
    rows: list[Row] = []
    for case in asked.models or CASES:
        name, _, share = case.partition(":")
        for mbps in LINKS_MBPS:
            with tempfile.TemporaryDirectory(prefix="planner-overlap-") as folder:
                model = ZOO / f"{name}.onnx"
                try:
                    rows.append(measured(model, f"{share}%", mbps, Path(folder), asked.time_limit))
                except InfeasibleBudgetError as error:
                    print(f"{case}: {error}", file=sys.stderr)
                    break
                print(json.dumps(rows[-1]), file=sys.stderr)
    text = report(rows)
    print(text)
    if not asked.print:
        PAGE.write_text(text, encoding="utf-8")
        write_rows(RESULT, rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""The plan as a trace for Perfetto or chrome://tracing, in the form of ONNX Runtime's own profile.

The file is one JSON list of events, times in microseconds (Trace Event Format; Google, 2016). As in a
profile of ONNX Runtime, a node is a complete event ("ph": "X") of category "Node", named
NAME_kernel_time, with `op_name`, `provider`, `node_index` and sizes as strings in its `args`, and the
run is an event "model_run" of category "Session". `args` has the plan's additional facts as well.
Operations and copies each way have lanes of their own; they follow each other, unless the plan runs
copies beside the operations. Counters show the live bytes, in total and by category, and the budget.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from planner.graph.model import Category, Operation, Role, TrainingGraph
from planner.plan.planfile import Decision
from planner.report.document.views import KIND_OF_ROLE, starts_us
from planner.results import ModelView, OptimizeResult

Event = dict[str, Any]

PID = 1
RUN, COMPUTE, COPY_OUT, COPY_IN = range(4)
LANES = {RUN: "step", COMPUTE: "compute", COPY_OUT: "copy to host", COPY_IN: "copy from host"}
_LANE_OF = {"copy_out": COPY_OUT, "copy_in": COPY_IN}
_DIGITS = 3  # nanoseconds


def write_trace(result: OptimizeResult, path: Path) -> None:
    """Write the trace of the rewritten model, one event per line."""
    lines = ",\n".join(json.dumps(event, allow_nan=False) for event in trace_events(result))
    path.write_text(f"[\n{lines}\n]\n", encoding="utf-8")


def trace_events(result: OptimizeResult) -> list[Event]:
    """Return all events: names of the lanes, the run, nodes in order, counters."""
    view = result.after
    starts = _starts_us(view)
    provider = result.verification.provider if result.verification else ""
    whole = {"ph": "X", "ts": 0.0, "dur": starts[-1], "name": "model_run", "args": {}}
    return [
        *_names(result.plan.model_name or view.graph.name),
        {"cat": "Session", "pid": PID, "tid": RUN, **whole},
        *_nodes(view, starts, result.plan.decisions, provider),
        *_counters(view, starts, result.plan.budget_bytes),
    ]


def _starts_us(view: ModelView) -> list[float]:
    """Return the start of each step and, last, the end of the run; rounded, to make slices meet."""
    starts = starts_us(view)
    durations = (view.duration_us[op] for op in view.timeline.order)
    end = max((s + d for s, d in zip(starts, durations, strict=True)), default=0.0)
    return [round(us, _DIGITS) for us in (*starts, end)]


def _end_us(view: ModelView, starts: list[float], step: int) -> float:
    """Return the end of a step: the next step's start, where steps follow each other."""
    if not view.start_us:
        return starts[step + 1]
    return starts[step] + view.duration_us[view.timeline.order[step]]


def _names(model: str) -> Iterator[Event]:
    def name(kind: str, tid: int, **args: object) -> Event:
        return {"ph": "M", "pid": PID, "tid": tid, "name": kind, "args": args}

    yield name("process_name", RUN, name=f"planner: {model}, as planned")
    for tid, lane in LANES.items():
        yield name("thread_name", tid, name=lane)
        yield name("thread_sort_index", tid, sort_index=tid)


def _nodes(
    view: ModelView, starts: list[float], decisions: tuple[Decision, ...], provider: str
) -> Iterator[Event]:
    graph, line = view.graph, view.timeline
    why: dict[int, list[str]] = {}
    for decision in decisions:
        why.setdefault(decision.end, []).append(f"{decision.tensor}: {decision.why}")
    for step, op_id in enumerate(line.order):
        op = graph.operations[op_id]
        args = {
            "op_name": op.op_type,
            "provider": provider,
            "node_index": str(op_id),
            **_sizes(graph, op),
            "step": step,
            "action": "run" if op.role is Role.ORIGINAL else op.role.value,
            "tensor": ", ".join(graph.tensors[t].name for t in op.outputs),
            "bytes": sum(graph.tensors[t].bytes for t in op.outputs if not op.is_view),
            "live_bytes": int(line.live_bytes[step]),
        }
        if step in why:
            args["why"] = "; ".join(why[step])
        yield {
            "cat": "Node",
            "pid": PID,
            "tid": _LANE_OF.get(KIND_OF_ROLE.get(op.role, ""), COMPUTE),
            "dur": round(_end_us(view, starts, step) - starts[step], _DIGITS),
            "ts": starts[step],
            "ph": "X",
            "name": f"{op.name}_kernel_time",
            "args": args,
        }


def _sizes(graph: TrainingGraph, op: Operation) -> dict[str, str]:
    """Return the sizes that a profile of ONNX Runtime has for a node's inputs and outputs."""
    inputs = [graph.tensors[t] for t in op.inputs]
    return {
        "output_size": str(sum(graph.tensors[t].bytes for t in op.outputs)),
        "parameter_size": str(sum(t.bytes for t in inputs if t.is_initializer)),
        "activation_size": str(sum(t.bytes for t in inputs if not t.is_initializer)),
    }


def _counters(view: ModelView, starts: list[float], budget_bytes: int) -> Iterator[Event]:
    """Yield counters of live bytes from each moment on; of several steps with one start, the fullest
    counts."""
    line = view.timeline
    fullest: dict[float, int] = {}
    for step, start in enumerate(starts[:-1]):
        before = fullest.get(start)
        if before is None or line.live_bytes[step] > line.live_bytes[before]:
            fullest[start] = step
    used = [c for c in Category if len(line.by_category[c]) and line.by_category[c].any()]
    if line.order:
        fullest.setdefault(starts[-1], len(line.order) - 1)

    def counter(name: str, ts: float, args: dict[str, int]) -> Event:
        return {"ph": "C", "pid": PID, "tid": RUN, "ts": ts, "name": name, "args": args}

    for ts in (0.0, starts[-1]):
        yield counter("budget", ts, {"bytes": budget_bytes})
    for ts, step in fullest.items():
        yield counter("live bytes", ts, {"bytes": int(line.live_bytes[step])})
        parts = {str(c): int(line.by_category[c][step]) for c in used}
        yield counter("live bytes by category", ts, parts)

"""Code to copy: the session options under which the predictions for "recommended" hold."""

from __future__ import annotations

from planner.disk import Disk
from planner.plan.planfile import Arena, MicroBatches, Plan
from planner.report.plain import nearby
from planner.results.verification import Verification
from planner.runtime.options import first_request
from planner.targets import HOST, Target, target_named

_HEAD = """\
import onnxruntime as ort

options = ort.SessionOptions()
options.enable_mem_pattern = False  # no block sized for the whole run
options.enable_mem_reuse = False  # a freed buffer is freed, not kept for a later one
"""

_PRIORITY = "options.execution_order = ort.ExecutionOrder.PRIORITY_BASED  # the plan's order\n"

_DISABLED = """\
# the graph was planned as it is (--no-ort-optimize)
options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
"""

_STEP = """

import json
import numpy as np

with open({plan!r}) as file:
    micro = json.load(file)["micro"]  # which outputs are fed back as which inputs
KINDS = {{"tensor(float)": "float32", "tensor(double)": "float64", "tensor(int64)": "int64",
         "tensor(int32)": "int32", "tensor(float16)": "float16"}}


def step(feeds):
    \"""A step on {batch} samples in {runs} runs on {size} each; returns what one run on all would.\"""
    inputs = {{i.name: i for i in session.get_inputs()}}
    names = [o.name for o in session.get_outputs()]
    pairs = {{pair["input"]: pair["output"] for pair in micro["accumulators"]}}
    totals = {{name: np.zeros(inputs[name].shape, KINDS[inputs[name].type]) for name in pairs}}
    rows = {{name: [] for name in micro["per_run"]}}
    for k in range({runs}):
        part = {{name: np.take(a, range({size} * k, {size} * (k + 1)), axis=micro["inputs"][name])
                if name in micro["inputs"] else a for name, a in feeds.items()}}
        results = dict(zip(names, session.run(None, {{**part, **totals}})))
        totals = {{name: results[output] for name, output in pairs.items()}}
        for name in rows:
            rows[name].append(results[name])
    axes = micro["per_run"]
    return {{**results, **{{name: np.concatenate(a, axes[name]) for name, a in rows.items()}}}}
"""

_OWN_STEP = """

# A step is {runs} runs on {size} samples each: the model's own nodes add the gradients up.
# for k in range({runs}):
#     loss = module(*parts[k])  # onnxruntime.training.api
# optimizer.step()
# module.lazy_reset_grad()
"""

_WITH_LIBRARY = """\
import planner

# the file's own settings, and the memory and the library that it runs with
session = planner.open_session({model!r})
"""


def session_code(
    model: str,
    *,
    order_target: str = "default",
    target: Target = HOST,
    budget_bytes: int = 0,
    optimized: bool = True,
    arena: Arena | None = None,
) -> str:
    """Return Python that opens `model` (a file name) with the recommended session options.

    Args:
        order_target: "default", or "priority" for a plan whose file order is the schedule.
        target: the target that it runs on.
        budget_bytes: the limit of a device's arena.
        optimized: whether it was planned on the graph as ONNX Runtime's optimizers leave it.
        arena: the arena that the model runs in; None where there is none.
    """
    comment = "The CPU arena grows by exactly what is asked for (1 = kSameAsRequested)."
    limits = '{"arena_extend_strategy": 1}'
    if arena is not None:
        comment = "The arena that the model runs in, in its first region alone."
        limits = _capped(arena.max_bytes, arena.region_bytes)
    elif target.is_arena:
        comment = "An arena of what was planned, which is too small as predicted: raise max_mem."
        limits = _capped(budget_bytes, budget_bytes)
    order = _PRIORITY if order_target == "priority" else ""
    order += "" if optimized else _DISABLED
    session = _session(model, target)
    return _HEAD + order + target.snippet.format(session=session, comment=comment, arena=limits)


def library_code(model: str) -> str:
    """Return Python that opens `model` by planner: its memory or its copies are not ONNX Runtime's."""
    return _WITH_LIBRARY.format(model=model)


def script_line(path: str, disk: Disk | None) -> str:
    """Return Python that opens a rewritten model as it was proved, to paste into a script."""
    where = f", disk={disk.folder!r}" if disk else ""
    return f"session = planner.open_session({nearby(path)!r}{where})"


def _session(model: str, target: Target) -> str:
    """Return the line that opens a session.

    It names no provider where that is a plug-in, which the session options contain.
    """
    providers = [target.provider, HOST.provider] if target.own_memory else [target.provider]
    said = "" if target.plugin else f", providers={providers!r}"
    return f"session = ort.InferenceSession({model!r}, options{said})"


def arena_of(plan: Plan, verification: Verification | None) -> Arena | None:
    """Return the device's arena in which the rewritten model ran, else the plan's; None where there
    is none."""
    caps = (
        verification.caps if verification is not None and target_named(plan.device).is_arena else ()
    )
    ran = next((c for c in caps if c.model == "rewritten" and c.passed), None)
    if ran is None:
        return plan.arena
    return Arena(max_bytes=ran.cap_bytes, first_region_bytes=ran.first_region_bytes, is_proved=True)


def _capped(cap_bytes: int, region_bytes: int) -> str:
    """Return the settings of an arena, as a dict in Python."""
    first_bytes, _ = first_request(region_bytes)
    return (
        f'{{"max_mem": {cap_bytes}, "initial_chunk_size_bytes": {first_bytes}, '
        '"max_dead_bytes_per_chunk": 1}'
    )


def step_code(micro: MicroBatches | None, plan: str) -> str:
    """Return Python that runs a step of several runs in the session of `session_code`; "" for a
    single run.

    Args:
        plan: the plan file.
    """
    if micro is None:
        return ""
    code = _STEP if micro.accumulators else _OWN_STEP
    size = micro.batch // micro.runs
    return code.format(plan=plan, batch=micro.batch, runs=micro.runs, size=size)

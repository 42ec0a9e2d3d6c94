"""What must hold for any graph, at any budget, judged by ONNX Runtime.

refusals    a graph is planned, or refused by a `ModelError` whatever the budget
bits        the rewritten model's outputs are the original's, bit for bit
    interface   the file declares the same inputs and outputs, shapes included, and sessions take and
                give the same names and types
order       nodes run as planned, at every optimization level
bytes       ONNX Runtime's live bytes are within the budget; so is what the plan predicts
least       the least budget that is named has a plan
more        a larger budget never costs more time
repeatable  the same reproducible call writes the same bytes; `apply` writes those of its plan
again       the rewritten model can be planned again
held        a file that is planned for what a session holds runs in the arena that it asks for
verified    planner's own verification agrees (on a share of the plans: it takes longest)
"""

from __future__ import annotations

import itertools
import traceback
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from unittest import mock

import numpy as np
import onnx
import onnxruntime as ort

import planner
from planner.choices import BudgetOf
from planner.errors import InfeasibleBudgetError, ModelError
from planner.pipeline.prepare import settings
from planner.results import OptimizeResult
from planner.runtime.memory.arena import packable_bytes
from planner.runtime.memory.paged import PAGE_BYTES
from tests.fuzz.cases import Case, Mode, feeds_of
from tests.fuzz.onnx_runtime import LEVELS, Ran, live_bytes, run, runs_as_opened, same_bits

_GRANULARITY = 256
TIME_LIMIT_S = 10.0
"""Long enough that searches on these graphs end by themselves: plans do not depend on the machine."""
HELD_LIMIT_S = 1.0
"""Of a plan that is compared with no other: where nothing is held, a search takes all of its time."""
_RANDOM = {
    "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Bernoulli",
    "Multinomial", "Dropout",
}  # fmt: skip


@dataclass
class Outcome:
    """What came of one case: findings (property, details) and counts of what was done."""

    findings: list[tuple[str, str]] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    refusal: str = ""

    def found(self, property_: str, details: object) -> None:
        """Record that a property does not hold."""
        self.findings.append((property_, " ".join(str(details).split())[:500]))


@dataclass(frozen=True, slots=True)
class _Model:
    """A case on disk, with what a plain session makes of it."""

    case: Case
    path: Path
    feeds: Mapping[str, np.ndarray]
    ran: Ran
    fixed: frozenset[str]  # outputs that do not depend on unseeded random numbers


def check_case(case: Case, folder: Path, *, twice: bool = True, verify: bool = False) -> Outcome:
    """Plan the case for three budgets and check every property.

    Args:
        folder: empty; files are left in it.
        twice: ask whether plans are repeatable and can be planned again, too.
        verify: have planner verify the plan for the middle budget as well.
    """
    outcome = Outcome()
    path = folder / "model.onnx"
    onnx.save(case.model, path)
    feeds = feeds_of(case)
    try:
        ran = run(path, feeds, level=case.mode.level, packed=case.mode.packed)
    except Exception as error:
        outcome.counts["not a model that ONNX Runtime runs"] += 1
        outcome.refusal = f"ONNX Runtime: {error}"[:200]
        return outcome
    model = _Model(case, path, feeds, ran, _fixed_outputs(case.model))
    try:
        _check_budgets(model, folder, outcome, twice=twice, verify=verify)
    except ModelError as error:
        outcome.refusal = str(error)
        outcome.counts["refused"] += 1
        if not _is_stated(str(error)):
            outcome.found("refusals", error)
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        outcome.found(
            "traceback",
            f"{type(error).__name__}: {error} ({Path(last.filename).name}:{last.lineno})",
        )
    return outcome


_STATED = ("nothing to plan", "is written over by node")


def _is_stated(message: str) -> bool:
    return any(text in message for text in _STATED)


def _check_budgets(
    model: _Model, folder: Path, outcome: Outcome, *, twice: bool, verify: bool
) -> None:
    baseline = _optimize(model, "100%", folder / "copy.onnx").before.timeline.peak_bytes
    try:
        _optimize(model, "1B", folder / "none.onnx")
        outcome.found("bytes", "a plan for one byte")
        return
    except InfeasibleBudgetError as error:
        least, bound = error.least_peak_bytes, error.bound_bytes
    if bound > least:
        outcome.found("least", f"the bound {bound} is above the least peak found {least}")
    budgets = sorted({least, (least + baseline) // 2, int(baseline * 0.95)} - {0})
    times: list[tuple[int, float, bool, int]] = []
    for number, budget in enumerate(budgets):
        output = folder / f"planned_{number}.onnx"
        try:
            result = _optimize(model, f"{budget}B", output)
        except InfeasibleBudgetError as error:
            outcome.counts["infeasible"] += 1
            if budget >= least:
                outcome.found("least", f"no plan at {budget}, least said {least}: {error}")
            continue
        outcome.counts["unchanged" if result.plan.unchanged else "planned"] += 1
        line = result.after.timeline
        rounding = _GRANULARITY * len(line.resident_at(line.peak_step)) if line.order else 0
        times.append((budget, result.plan.planned.time_us, _fits_arena(result), rounding))
        _check_plan(model, result, output, budget, outcome)
        if number != len(budgets) // 2 or result.plan.unchanged:
            continue
        if twice:
            outcome.counts["repeated"] += 1
            _check_repeatable(model, output, budget, folder, outcome)
            _check_again(model, result, output, folder, outcome)
        if verify:
            _check_verified(model, output, outcome)
            _check_held(model, budget, folder, outcome)
    for (small, slow, fits, rounding), (large, fast, also, _) in itertools.pairwise(times):
        # a plan that fits the arena, too, may cost more than one that does not; and what buffers are
        # rounded up by may hide a plan from the search, where budgets are as near as that; how much is
        # to live on the host is a guess, where it is a choice
        comparable = (fits or not also) and model.case.mode.resident != "auto"
        if fast > slow * (1 + 1e-9) and comparable and large - small > rounding:
            outcome.found("more", f"{large} B takes {fast} us, {small} B {slow} us")


def _fits_arena(result: OptimizeResult) -> bool:
    return not any("arena is predicted to need more" in text for text in result.plan.assumptions)


def _optimize(
    model: _Model,
    budget: str,
    output: Path,
    *,
    path: Path | None = None,
    budget_of: BudgetOf = "live",
    time_limit_s: float | None = None,
    reproducible: bool = False,
) -> OptimizeResult:
    mode: Mode = model.case.mode
    return planner.optimize(
        path or model.path,
        budget=budget,
        output=output,
        plan_path=output.with_suffix(".json"),
        dims=dict(model.case.dims),
        resident=mode.resident,  # pyright: ignore[reportArgumentType]
        min_tensor=None if mode.resident == "device" else "0B",
        swap=mode.swap,  # pyright: ignore[reportArgumentType]
        order=mode.order,  # pyright: ignore[reportArgumentType]
        ort_optimize=mode.ort_optimize,
        time_limit_s=time_limit_s or TIME_LIMIT_S,
        reproducible=reproducible,
        verify=False,
        budget_of=budget_of,
        force=True,
    )


def _check_plan(
    model: _Model, result: OptimizeResult, output: Path, budget: int, outcome: Outcome
) -> None:
    if result.after.timeline.peak_bytes > budget:
        outcome.found("bytes", f"predicted {result.after.timeline.peak_bytes}, budget {budget}")
    if not result.plan.unchanged:
        _check_declared(model, output, outcome)
    graph = result.after.graph
    planned = tuple(graph.operations[op].name for op in result.after.timeline.order)
    levels = list(LEVELS) if model.case.mode.ort_optimize else ["disabled"]
    if result.plan.unchanged:  # the levels of a copy differ as those of the original do
        levels = [model.case.mode.level]
    priority = model.case.mode.order == "priority" and not result.plan.unchanged
    packed = model.case.mode.packed
    for level in levels:
        try:
            ran = run(output, model.feeds, level=level, priority=priority, packed=packed)
        except Exception as error:
            outcome.found("bits", f"level {level}: does not run: {error}")
            continue
        _compare(model, ran, level, outcome)
        if ran.order != planned and not result.plan.unchanged:
            at = next(
                (i for i, (a, b) in enumerate(zip(planned, ran.order, strict=False)) if a != b),
                min(len(planned), len(ran.order)),
            )
            outcome.found(
                "order",
                f"level {level}: step {at}: planned {planned[at : at + 1]}, ran "
                f"{ran.order[at : at + 1]} of {len(planned)} and {len(ran.order)} nodes",
            )
    if not any(n.op_type.startswith("Memcpy") for n in onnx.load(output).graph.node):
        held = live_bytes(output, model.feeds, level=levels[-1], priority=priority)
        if held > budget:
            outcome.found("bytes", f"ONNX Runtime holds {held} B, budget {budget} B")
    if not model.case.mode.ort_optimize and not result.plan.unchanged:
        for level in LEVELS:
            try:
                run(output, model.feeds, level=level, priority=priority, packed=packed)
            except Exception as error:
                outcome.found("survival", f"level {level}: {error}")


def _compare(model: _Model, ran: Ran, level: str, outcome: Outcome) -> None:
    if ran.interface != model.ran.interface:
        off = [p for p in zip(model.ran.interface, ran.interface, strict=False) if p[0] != p[1]]
        outcome.found("interface", f"level {level}: {off[:2]}")
    for name, wanted in model.ran.outputs.items():
        if name in model.fixed and name in ran.outputs and not same_bits(wanted, ran.outputs[name]):
            outcome.found("bits", f"level {level}: output {name!r} differs")


def _check_declared(model: _Model, output: Path, outcome: Outcome) -> None:
    """Shapes are compared as declared: a session may infer more of one graph than of another."""
    before, after = model.case.model.graph, onnx.load(output).graph
    inputs = {v.name: v for v in before.input}
    for side in ("input", "output"):
        declared = [(v.name, inputs.get(v.name, v).type) for v in getattr(before, side)]
        found = [(v.name, v.type) for v in getattr(after, side)]
        if side == "input":  # an initializer on the host is listed, too, behind them
            mine = {t.name for t in after.initializer}
            found = found[: len(declared)] + [v for v in found[len(declared) :] if v[0] not in mine]
        if declared != found:
            off = [p for p in zip(declared, found, strict=False) if p[0] != p[1]]
            outcome.found("interface", f"{side}s as declared: {off[:2] or 'of another number'}")


def _check_repeatable(model: _Model, output: Path, budget: int, folder: Path, out: Outcome) -> None:
    once, again = folder / "once.onnx", folder / "again.onnx"
    first, second = (
        _optimize(model, f"{budget}B", path, reproducible=True) for path in (once, again)
    )
    if again.read_bytes() != once.read_bytes():
        if second.plan.schedule != first.plan.schedule:
            out.found("repeatable", "the same call made another plan")
        else:
            out.found("repeatable", "the same plan wrote another file")
    applied = folder / "applied.onnx"
    planner.apply(model.path, output.with_suffix(".json"), output=applied, force=True)
    if applied.read_bytes() != output.read_bytes():
        out.found("repeatable", "apply wrote another file than optimize")


def _check_again(
    model: _Model, result: OptimizeResult, output: Path, folder: Path, outcome: Outcome
) -> None:
    """Plan the rewritten model again, for nine tenths of its peak or the least that it can have."""
    wanted = int(result.after.timeline.peak_bytes * 0.9)
    twice = folder / "twice.onnx"
    try:
        second = _optimize(model, f"{wanted}B", twice, path=output)
    except InfeasibleBudgetError as error:
        least = error.least_peak_bytes
        try:
            second = _optimize(model, f"{least}B", twice, path=output)
        except InfeasibleBudgetError:
            outcome.found("again", f"no plan at the least peak {least} of the rewritten model")
            return
    outcome.counts["planned again"] += 1
    try:
        level = "all" if model.case.mode.ort_optimize else "disabled"
        priority = model.case.mode.order == "priority"
        ran = run(twice, model.feeds, level=level, priority=priority, packed=model.case.mode.packed)
    except Exception as error:
        outcome.found("again", f"does not run: {error}")
        return
    graph = second.after.graph
    planned = tuple(graph.operations[op].name for op in second.after.timeline.order)
    if ran.order != planned and not second.plan.unchanged:
        outcome.found("again", "the order is not the planned one")
    _compare(model, ran, "all, planned again", outcome)


def _check_verified(model: _Model, output: Path, outcome: Outcome) -> None:
    outcome.counts["verified"] += 1
    found = planner.verify(model.path, output, plan=output.with_suffix(".json"))
    if not found.passed:
        outcome.found("verified", found.failures)


def _check_held(model: _Model, budget: int, folder: Path, outcome: Outcome) -> None:
    output = folder / "held.onnx"
    try:
        with mock.patch.object(settings, "FEW_PAGES_BYTES", 0):  # so small are these models
            result = _optimize(
                model,
                f"{budget}B",
                output,
                budget_of="held",
                time_limit_s=HELD_LIMIT_S,
            )
    except InfeasibleBudgetError as error:
        outcome.counts["not held"] += 1
        if error.least_peak_bytes <= budget:
            outcome.found("held", f"no plan at {budget}, and {error.least_peak_bytes} is named")
        return
    pool = result.plan.pool
    if pool is None:
        return
    outcome.counts["held"] += 1
    if pool.bytes > budget + packable_bytes(result.after.graph) + PAGE_BYTES:
        outcome.found("held", f"a pool of {pool.bytes} B within a budget of {budget} B")
    if message := runs_as_opened(output, model.feeds, packed=model.case.mode.packed):
        outcome.found("held", message)


def _fixed_outputs(proto: onnx.ModelProto) -> frozenset[str]:
    """Outputs that are the same in each run: no node that draws without a seed is behind them."""
    loose: set[str] = set()
    for node in proto.graph.node:
        seeded = any(a.name == "seed" for a in node.attribute)
        if (node.op_type in _RANDOM and not seeded) or loose & set(node.input):
            loose.update(node.output)
    return frozenset(o.name for o in proto.graph.output if o.name not in loose)


ort.set_default_logger_severity(4)

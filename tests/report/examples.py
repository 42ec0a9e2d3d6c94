"""Hand-built results of real types: a chain of layers, forward and backward, before and after.

Every other activation of the rewritten model is recomputed and, with `swaps`, every third of the
others swapped. The numbers are those of the graphs; what ONNX Runtime says is made up.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from planner.files.structuring import json_text
from planner.graph.liveness import timeline
from planner.graph.model import Category, Operation, OpId, Role, Tensor, TensorId, TrainingGraph
from planner.pipeline.answer.budgets.sweep import largest
from planner.plan.planfile import Decision, Plan, PlannedAction, PredictedCost
from planner.plan.points import Point, PointPlan
from planner.results import (
    Analysis,
    ArenaForecast,
    BindingStep,
    BudgetPreview,
    Frontier,
    ModelView,
    OptimizeResult,
    Sweep,
)
from planner.results.verification import (
    CapCheck,
    DefaultBits,
    MemoryCheck,
    OrderCheck,
    OutputComparison,
    SessionCheck,
    TimeCheck,
    Verification,
)

MIB = 1 << 20
ODD_NAMES = (
    "<script>alert('x')</script>",
    'say "hi" & <b>bye</b>',
    "naïve 🚀 名前",
    "line\nbreak\x1b[31m",
    "</script><script>x",
    "[red]{{ 7 * 7 }}$$x$$",
)


def as_json(document: object) -> Any:
    """A document as a reader of `--json` has it."""
    return json.loads(json_text(document))


class GraphBuilder:
    """Collects operations and tensors in file order."""

    def __init__(self) -> None:
        self.ops: list[dict] = []
        self.tensors: list[dict] = []

    def tensor(self, name: str, size: int, category: Category, **flags: bool) -> int:
        index = len(self.tensors)
        self.tensors.append({"name": name, "bytes": size, "category": category, **flags})
        return index

    def op(self, name: str, op_type: str, inputs: list[int], outputs: list[int], **more) -> int:
        index = len(self.ops)
        self.ops.append(
            {"name": name, "op_type": op_type, "inputs": inputs, "outputs": outputs, **more}
        )
        return index

    def build(self, name: str) -> TrainingGraph:
        producer = {t: i for i, op in enumerate(self.ops) for t in op["outputs"]}
        consumers: dict[int, list[int]] = {}
        for i, op in enumerate(self.ops):
            for t in dict.fromkeys(op["inputs"]):
                consumers.setdefault(t, []).append(i)
        tensors = tuple(
            Tensor(
                id=TensorId(i),
                dtype="float32",
                shape=(t["bytes"] // 4,),
                buffer=TensorId(i),
                producer=None if i not in producer else OpId(producer[i]),
                consumers=tuple(OpId(c) for c in consumers.get(i, ())),
                **t,
            )
            for i, t in enumerate(self.tensors)
        )
        operations = tuple(
            Operation(
                id=OpId(i),
                domain="",
                **{
                    **op,
                    "inputs": tuple(map(TensorId, op["inputs"])),
                    "outputs": tuple(map(TensorId, op["outputs"])),
                },
            )
            for i, op in enumerate(self.ops)
        )
        return TrainingGraph(
            name=name,
            operations=operations,
            tensors=tensors,
            inputs=tuple(t.id for t in tensors if t.is_input),
            outputs=tuple(t.id for t in tensors if t.is_output),
            assumptions=("Workspace of kernels is not modelled.",),
        )


def chain(layers: int, *, rewritten: bool = False, swaps: bool = True) -> TrainingGraph:
    """Forward and backward of `layers` layers; `rewritten` recomputes and swaps activations."""
    g = GraphBuilder()
    size = [(1 + i % 5) * MIB for i in range(layers + 1)]
    x = g.tensor("x", size[0], Category.INPUT, is_input=True)
    weights = [
        g.tensor(f"w{i}", MIB // 2, Category.PARAMETER, is_input=True) for i in range(layers)
    ]
    acts, late = [x], {}
    for i in range(layers):
        name = ODD_NAMES[i // 2] if i % 2 and i // 2 < len(ODD_NAMES) else f"layer.{i}.out"
        act = g.tensor(name, size[i + 1], Category.ACTIVATION)
        g.op(f"/layer.{i}/MatMul", "MatMul", [acts[-1], weights[i]], [act])
        if rewritten and i and fate(i, swaps) == "swap":
            host = g.tensor(f"{name}__host", size[i], Category.ACTIVATION, on_host=True)
            g.op(f"{name}__out", "MemcpyToHost", [acts[-1]], [host], role=Role.SWAP_OUT)
            late[i] = host
        acts.append(act)
    grad = g.tensor("dloss", size[layers], Category.GRADIENT)
    g.op("/loss/Grad", "LossGrad", [acts[-1]], [grad])
    for i in reversed(range(layers)):
        act = acts[i]
        if rewritten and i and fate(i, swaps) == "swap":
            act = g.tensor(f"act{i}__back", size[i], Category.ACTIVATION)
            g.op(f"act{i}__in", "MemcpyFromHost", [late[i]], [act], role=Role.SWAP_IN)
        elif rewritten and i and fate(i, swaps) == "recompute":
            act = g.tensor(f"act{i}__again", size[i], Category.ACTIVATION)
            g.op(
                f"/layer.{i - 1}/MatMul__recompute_0",
                "MatMul",
                [acts[i - 1], weights[i - 1]],
                [act],
                role=Role.RECOMPUTE,
            )
        dw = g.tensor(f"w{i}.grad", MIB // 2, Category.OUTPUT, is_output=True)
        dx = g.tensor(f"dx{i}", size[i], Category.GRADIENT)
        g.op(f"/layer.{i}/Grad", "MatMulGrad", [grad, act, weights[i]], [dw, dx])
        grad = dx
    return g.build("chain")


def fate(i: int, swaps: bool) -> str:
    """What the example plan does with activation `i`."""
    if i % 2 == 0:
        return "recompute"
    return "swap" if swaps and i % 3 == 0 else "keep"


def view(graph: TrainingGraph) -> ModelView:
    steps = len(graph.operations)
    order = tuple(OpId(i) for i in range(steps))
    line = timeline(graph, order, workspace_bytes={order[0]: MIB // 8} if order else {})
    return ModelView(
        graph=graph,
        timeline=line,
        time_us=12.5 * steps,
        duration_us=(12.5,) * steps,
        arena=(
            ArenaForecast(options="default", in_use_bytes=line.peak_bytes * 2, held_bytes=1 << 30),
            ArenaForecast(options="recommended", in_use_bytes=line.peak_bytes, held_bytes=1 << 29),
        ),
    )


def optimize_result(layers: int = 12, *, swaps: bool = True, verified: bool = True):
    """An `OptimizeResult` over `chain(layers)`."""
    before = view(chain(layers))
    after = view(chain(layers, rewritten=True, swaps=swaps))
    names = {i + 1: t for i, t in enumerate(_activations(before.graph))}
    decisions = tuple(
        Decision(
            tensor=names[i].name,
            bytes=names[i].bytes,
            category=str(names[i].category),
            action=fate(i, swaps),
            start=i + 1,
            end=2 * layers - i,
            cost_us=12.5,
            recompute_us=12.5,
            swap_us=None if not swaps else 812.4,
            why=f"the cheapest way to free {names[i].name} at the peak",
        )
        for i in range(1, layers)
        if fate(i, swaps) != "keep"
    )
    moved = sum(d.bytes for d in decisions if d.action == "swap")
    plan = Plan(
        planner_version="0.0.0",
        model_name="chain",
        model_sha256="ab" * 32,
        dims={"batch": 32},
        budget_text="70%",
        budget_bytes=int(before.timeline.peak_bytes * 0.7) + 12345,
        reserve_bytes=0,
        hardware="cpu",
        cost_source="roofline of cpu",
        engine="cut LP",
        solve_s=1.25,
        baseline=PredictedCost(peak_bytes=before.timeline.peak_bytes, time_us=before.time_us),
        best_order=PredictedCost(
            peak_bytes=before.timeline.peak_bytes - MIB, time_us=before.time_us
        ),
        planned=PredictedCost(
            peak_bytes=after.timeline.peak_bytes,
            time_us=after.time_us,
            recomputed_ops=sum(d.action == "recompute" for d in decisions),
            recompute_us=12.5 * sum(d.action == "recompute" for d in decisions),
            recomputed_bytes=sum(d.bytes for d in decisions if d.action == "recompute"),
            swapped_tensors=sum(d.action == "swap" for d in decisions),
            swap_out_bytes=moved,
            swap_in_bytes=moved,
            swap_us=812.4,
        ),
        least_peak_bytes=after.timeline.peak_bytes - MIB,
        least_peak_bound_bytes=after.timeline.peak_bytes // 2,
        bound_us=after.time_us * 0.99,
        gap=0.0101,
        bound_class="schedules with at most two copies of a tensor",
        binding=(("w0", MIB // 2),),
        schedule=tuple(PlannedAction(kind="run", target=o.name) for o in after.graph.operations),
        decisions=decisions,
        assumptions=("Copies run on the compute stream.",),
    )
    return OptimizeResult(
        plan=plan,
        model_path=Path("models/<chain> & co.onnx"),
        before=before,
        after=after,
        verification=verification(before, after) if verified else None,
        budget_preview=budget_preview(plan, layers),
        output_path=Path("chain.planned.onnx"),
        plan_path=Path("chain.plan.json"),
        report_path=Path("chain.report.html"),
    )


def _activations(graph: TrainingGraph) -> list[Tensor]:
    return [t for t in graph.tensors if t.category is Category.ACTIVATION]


def verification(before: ModelView, after: ModelView, *, passed: bool = True) -> Verification:
    def memory(model: str, seen: ModelView, how: str) -> MemoryCheck:
        nodes = tuple(
            (seen.graph.operations[op].name, int(b), int(b) + 64 * (i % 3))
            for i, (op, b) in enumerate(
                zip(seen.timeline.order, seen.timeline.live_bytes, strict=True)
            )
        )
        return MemoryCheck(
            model=model,
            options="recommended",
            how=how,
            predicted_live_bytes=seen.timeline.peak_bytes,
            live_bytes=seen.timeline.peak_bytes + 128,
            predicted_in_use_bytes=seen.timeline.peak_bytes,
            in_use_bytes=seen.timeline.peak_bytes + 4096,
            per_node=nodes,
            worst=tuple(sorted(nodes, key=lambda n: n[1] - n[2])[:5]),
        )

    return Verification(
        ort_version="1.31.1",
        provider="CPUExecutionProvider",
        device="cpu",
        seed=0,
        inputs_source="seeded",
        passed=passed,
        failures=() if passed else ("output dx0 differs by inf",),
        notes=("Copies were replayed from the executed order.",),
        outputs=tuple(
            OutputComparison(
                name=before.graph.tensors[t].name,
                dtype="float32",
                shape=(512, 256),
                identical=passed or i > 0,
                is_near=passed or i > 0,
                max_abs_diff=0.0 if passed or i > 0 else float("inf"),
                max_rel_diff=0.0 if passed or i > 0 else float("nan"),
                rms_rel_diff=0.0 if passed or i > 0 else float("inf"),
                has_nan=False,
            )
            for i, t in enumerate(before.graph.outputs)
        ),
        orders=tuple(
            OrderCheck(
                level=level,
                equal=True,
                executed=len(after.timeline.order),
                planned=len(after.timeline.order),
            )
            for level in ("disabled", "extended", "all")
        ),
        memory=(memory("original", before, "measured"), memory("rewritten", after, "replayed")),
        caps=(
            CapCheck(
                model="original",
                cap_bytes=40 * MIB,
                passed=False,
                expected=False,
                message="Available memory of 123 is smaller than requested bytes of 456",
            ),
            CapCheck(model="rewritten", cap_bytes=40 * MIB, passed=True, expected=True),
        ),
        time=TimeCheck(original_us=(300.0, 310.0, 305.0), rewritten_us=(330.0, 333.5, 331.0)),
        sessions=tuple(
            SessionCheck(
                model=model,
                options=options,
                grown_bytes=(size * MIB, 2 * size * MIB),
                results_bytes=MIB,
            )
            for model, options, size in (
                ("original", "default", 40),
                ("rewritten", "default", 20),
                ("rewritten", "recommended", 12),
            )
        ),
        default_bits=DefaultBits(compared=len(before.graph.outputs)),
    )


def analysis(layers: int = 12) -> Analysis:
    model = view(chain(layers))
    return Analysis(
        model_path=Path("models/<chain> & co.onnx"),
        model_sha256="ab" * 32,
        dims={"batch": 32},
        hardware="cpu",
        cost_source="roofline of cpu",
        ort_optimized=True,
        default=model,
        best_order=PredictedCost(peak_bytes=model.timeline.peak_bytes - MIB, time_us=model.time_us),
        best_order_name="memory-aware list",
        least_peak_bound_bytes=model.timeline.peak_bytes // 3,
        least_peak_bytes=model.timeline.peak_bytes // 2,
        assumptions=("Workspace of kernels is not modelled.",),
        budget_preview=BudgetPreview(frontier=budgets(8, (0.2, 0.1, 0.0)), binds=None, seconds=1.5),
    )


def budget_preview(plan: Plan, layers: int) -> BudgetPreview:
    """Half and twice the plan's budget beside it, and two moments that bind, at odd names."""
    here = plan.budget_bytes
    slowdowns = {
        here // 2: 0.5,
        here: plan.planned.time_us / plan.baseline.time_us - 1,
        2 * here: 0,
    }
    binding = tuple(
        BindingStep(node=ODD_NAMES[i], step=i * layers, us_per_mib=2e-5 * MIB / (1 + i))
        for i in range(2)
    )
    frontier = frontier_of(plan.dims, slowdowns, plan.baseline)
    return BudgetPreview(frontier=frontier, binds=binding, seconds=1.5)


def budgets(batch: int, slowdowns: tuple[float | None, ...]) -> Frontier:
    """One size at three budgets."""
    at = dict(zip(BUDGETS, slowdowns, strict=True))
    return frontier_of({"batch": batch}, at, PredictedCost(peak_bytes=100 * MIB, time_us=1000.0))


BUDGETS = (40 * MIB, 70 * MIB, 100 * MIB)


def frontier_of(
    dims: dict[str, int], slowdowns: dict[int, float | None], baseline: PredictedCost
) -> Frontier:
    """A frontier with a plan for each budget whose slowdown is given, half of which is proved."""
    points = [
        Point(
            capacity_bytes=budget,
            plan=None
            if slow is None
            else PointPlan(
                peak_bytes=budget - 4096,
                time_us=baseline.time_us * (1 + slow),
                engine="cut-lp",
                order=0,
                recomputed_ops=round(100 * slow),
            ),
            bound_us=float("inf") if slow is None else baseline.time_us * (1 + slow / 2),
        )
        for budget, slow in slowdowns.items()
    ]
    return Frontier(
        dims=dims,
        baseline_bytes=baseline.peak_bytes,
        base_us=baseline.time_us,
        order_alone_bytes=int(0.9 * baseline.peak_bytes),
        least_bound_bytes=int(0.3 * baseline.peak_bytes),
        orders=("default",),
        points=tuple(points),
    )


def swept() -> Sweep:
    """Two sizes at three budgets, the least of them too little for the larger size."""
    found = (budgets(8, (0.2, 0.1, 0.0)), budgets(16, (None, 0.3, 0.05)))
    return Sweep(
        model_path=Path("<b>model</b>.onnx"),
        model_sha256="0" * 64,
        hardware="cpu",
        cost_source="roofline of cpu",
        swap_mode="none",
        seed=0,
        seconds=1.0,
        dim="batch",
        frontiers=found,
        largest=largest(found, "batch", BUDGETS),
        assumptions=("assumed",),
    )

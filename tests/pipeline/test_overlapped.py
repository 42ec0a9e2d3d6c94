"""Files whose copies run beside the operations, on ONNX Runtime: bits, order, swaps, host memory."""

from __future__ import annotations

import gc
from dataclasses import replace
from pathlib import Path

import onnx
import onnxruntime as ort
import pytest

import planner
from planner.graph.model import Operation
from planner.graph.rules import LOAD_IN, STORE_OUT, SWAP_IN_DONE, SWAP_OUT, TO_HOST
from planner.native import counts
from planner.pipeline.answer.explain import explain
from planner.pipeline.solve import trying
from planner.results import OptimizeResult
from planner.runtime.feeds.inputs import make_inputs
from planner.runtime.profile import read_profile
from planner.runtime.swapping import CHECK_SWAPS, LINK_JITTER_US, LINK_MBPS, register_library

pytestmark = pytest.mark.usefixtures("native_library")

ZOO = Path(__file__).parents[2] / "models" / "zoo"
RACE = {CHECK_SWAPS: "1", LINK_MBPS: "500", LINK_JITTER_US: "200"}
STEPS = 3
SETTINGS = {"swap": "only", "copies": "overlapped", "time_limit_s": 1.0}


@pytest.fixture(
    scope="module",
    params=[("gpt", "40%", "auto"), ("mlp_adamw", "40%", "host")],
    ids="-".join,
)
def made(request, tmp_path_factory) -> OptimizeResult:
    name, budget, resident = request.param
    folder = tmp_path_factory.mktemp("overlapped")
    return planner.optimize(
        ZOO / f"{name}.onnx",
        budget=budget,
        output=folder / "out.onnx",
        plan_path=folder / "plan.json",
        resident=resident,
        verify=False,
        **SETTINGS,
    )


def opened(path: Path, level: int = 99, profile: Path | None = None) -> ort.InferenceSession:
    """The file on a slow link, under watch."""
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = ort.GraphOptimizationLevel(level)
    for key, value in RACE.items():
        options.add_session_config_entry(key, value)
    if profile is not None:
        options.enable_profiling = True
        options.profile_file_prefix = str(profile)
    register_library(options)
    return ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def count_of(result: OptimizeResult, *op_types: str) -> int:
    return sum(op.op_type in op_types for op in result.after.graph.operations)


def stores_of(result: OptimizeResult) -> list[str]:
    """Names of the outputs that StoreOut writes."""
    graph = result.after.graph
    stores = [op for op in graph.operations if op.op_type == STORE_OUT]
    return [graph.tensors[op.inputs[2]].name for op in stores]


def loads_of(result: OptimizeResult) -> list[str]:
    """Names of the inputs that LoadIn copies in, once for each copy."""
    graph = result.after.graph
    loads = [op for op in graph.operations if op.op_type == LOAD_IN]
    return [graph.tensors[op.inputs[0]].name for op in loads]


def test_bits_of_steps_with_new_inputs_and_the_hosts_bytes(made):
    original = ort.InferenceSession(made.model_path, providers=["CPUExecutionProvider"])
    rewritten = opened(made.output_path)
    gc.collect()
    before = counts()
    assert before.slot_bytes == 0
    for seed in range(STEPS):
        feeds, _ = make_inputs(made.model_path, seed=seed)
        wanted, found = original.run(None, feeds), rewritten.run(None, feeds)
        assert [a.tobytes() for a in found] == [a.tobytes() for a in wanted]
    after = counts()
    assert count_of(made, SWAP_OUT) > 0
    assert after.swaps_out - before.swaps_out == STEPS * count_of(made, SWAP_OUT, STORE_OUT)
    assert after.swaps_in - before.swaps_in == STEPS * count_of(made, SWAP_IN_DONE)
    assert after.violations == before.violations
    assert after.live_slots == 0
    assert 0 < after.slot_bytes <= made.plan.planned.host_bytes
    if not made.plan.resident:
        assert after.slot_bytes == made.plan.planned.host_bytes


@pytest.mark.parametrize("level", [0, 1, 2, 3])
def test_the_order_is_the_planned_one_at_every_level(made, level, tmp_path):
    graph = made.after.graph
    planned = [graph.operations[op].name for op in made.after.timeline.order]
    feeds, _ = make_inputs(made.model_path, seed=0)
    session = opened(made.output_path, level, tmp_path / "p")
    session.run(None, feeds)
    (run,) = read_profile(Path(session.end_profiling()))
    assert [event.name for event in run] == planned


def test_each_tensor_goes_out_is_waited_for_and_comes_back_in_turns(made):
    turns, store = ["SwapOut", "SwapOutDone", "SwapIn", "SwapInDone"], ["StoreOut", "SwapOutDone"]
    tensors, ops = made.after.graph.tensors, made.after.graph.operations

    def is_load(op: Operation) -> bool:
        maker = tensors[op.inputs[0]].producer if op.inputs else None
        return maker is not None and ops[maker].op_type == LOAD_IN

    kinds: dict[str, list[str]] = {}
    nodes = {n.name: n for n in onnx.load(made.output_path, load_external_data=False).graph.node}
    for step in made.after.timeline.order:
        if ops[step].op_type in {*turns, *store} and not is_load(ops[step]):
            props = {p.key: p.value for p in nodes[ops[step].name].metadata_props}
            kinds.setdefault(props["pkg.planner.tensor"], []).append(ops[step].op_type)
    assert kinds
    for found in kinds.values():
        assert found in (store, turns * (len(found) // 4))
    assert list(kinds.values()).count(store) == len(stores_of(made))
    first = ops[made.after.timeline.order[0]]
    assert first.op_type == "SwapBegin"


def test_what_lives_on_the_host_is_loaded_beside_the_operations_and_ahead(made):
    inputs = {t.name for t in made.after.graph.tensors if t.is_input}
    waiting = inputs & set(made.plan.resident)
    loads = loads_of(made)
    assert set(loads) == {n for n in waiting if made.before.graph.tensor_named(n).shape}
    if not loads:
        return
    graph, order = made.after.graph, made.after.timeline.order
    place = {op: step for step, op in enumerate(order)}
    ends = {op.inputs[0]: op.id for op in graph.operations if op.op_type == SWAP_IN_DONE}
    between = [
        place[ends[op.outputs[0]]] - place[op.id] - 1
        for op in graph.operations
        if op.op_type == LOAD_IN
    ]
    assert sum(count > 0 for count in between) >= len(between) / 2
    assert made.plan.planned.time_us < made.plan.one_stream_us


def test_outputs_on_the_host_are_stored_beside_the_operations(made):
    graph, order = made.after.graph, made.after.timeline.order
    waiting = {t.name for t in graph.tensors if t.is_output} & set(made.plan.resident)
    assert set(stores_of(made)) == {n for n in waiting if made.before.graph.tensor_named(n).shape}
    copied = [graph.tensors[op.outputs[0]] for op in graph.operations if op.op_type == TO_HOST]
    assert not any(t.shape for t in copied)
    place = {op: step for step, op in enumerate(order)}
    begun = {op.outputs[0]: op.id for op in graph.operations if op.op_type == STORE_OUT}
    ended = {t: next(iter(graph.tensors[t].consumers)) for t in begun}
    between = [place[ended[t]] - place[op] - 1 for t, op in begun.items()]
    assert sum(count > 0 for count in between) >= len(between) / 2


def test_apply_reads_the_plan_back_to_the_same_bytes(made, tmp_path):
    again = planner.apply(made.model_path, made.plan_path, output=tmp_path / "again.onnx")
    assert again.read_bytes() == made.output_path.read_bytes()


def test_it_is_opened_by_what_the_file_says(made):
    feeds, _ = make_inputs(made.model_path, seed=1)
    options = planner.session_options(made.output_path)
    session = ort.InferenceSession(made.output_path, options)
    found = [a.tobytes() for a in session.run(None, feeds)]
    assert made.plan.pool is not None
    for pool in (None, f"{made.plan.pool.bytes}B"):  # the file's own lets some lie outside of it
        opened_so = planner.open_session(made.output_path, pool=pool)
        assert found == [a.tobytes() for a in opened_so.run(None, feeds)]


def test_the_host_budget_bounds_the_slots(tmp_path):
    budget = 8 << 20
    done = planner.optimize(
        ZOO / "gpt.onnx",
        budget="60%",
        host_budget="8MiB",
        output=tmp_path / "out.onnx",
        resident="device",
        verify=False,
        **{**SETTINGS, "swap": "auto"},
    )
    rewritten = opened(done.output_path)
    gc.collect()
    feeds, _ = make_inputs(done.model_path, seed=0)
    rewritten.run(None, feeds)
    assert 0 < counts().slot_bytes == done.plan.planned.host_bytes <= budget


def test_no_bound_is_above_a_plan_whose_loads_hide(tmp_path):
    """Fed from the host, the model as it is has copies that the plan hides."""
    options = {"swap": "auto", "copies": "overlapped", "resident": "host", "time_limit_s": 1.0}
    model = ZOO / "mlp_adamw.onnx"
    done = planner.optimize(
        model,
        budget="60%",
        device="cpu",
        hardware="a100-40gb",
        feeds="host",
        output=tmp_path / "out.onnx",
        plan_path=tmp_path / "plan.json",
        verify=False,
        **options,
    )
    plan = done.plan
    assert loads_of(done) and plan.bound_us is not None
    assert plan.bound_us <= plan.planned.time_us < plan.baseline.time_us
    found = explain(model, tmp_path / "plan.json", "layers.1.weight__here", time_limit_s=1.0)
    assert found.prices is not None and found.prices.bound_us <= plan.planned.time_us
    frontier = planner.sweep(
        model, budgets=("60%", "80%"), device="cpu", hardware="a100-40gb", feeds="host", **options
    ).frontiers[0]
    times = [p.plan.time_us for p in frontier.points if p.plan is not None]
    assert times and all(p.bound_us <= plan.planned.time_us for p in frontier.points)


def test_a_search_goes_on_from_a_plan_whose_loads_begin_early(monkeypatch):
    """Lowering moves loads ahead of the operations; a search begins from the plan before that."""
    refined, began = [], []
    refine, search_for = trying.TrialSearch.refine, trying.search_for
    monkeypatch.setattr(trying, "POLICY", replace(trying.POLICY, cut=0.0))
    monkeypatch.setattr(
        trying.TrialSearch, "refine", lambda *found: (refined.append(found), refine(*found))
    )
    monkeypatch.setattr(
        trying, "search_for", lambda problem: (began.append(len(refined)), search_for(problem))[1]
    )
    done = planner.optimize(
        ZOO / "mlp_adamw.onnx",
        budget="45%",
        device="cuda",
        hardware="a100-40gb",
        swap="auto",
        copies="overlapped",
        resident="host",
        reproducible=True,
        time_limit_s=8.0,
        dry_run=True,
    )
    assert any(began) and loads_of(done)  # some search began in a call of `refine`

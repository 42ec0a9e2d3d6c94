"""Files whose copies run beside the operations, on ONNX Runtime: bits, order, swaps, host memory."""

from __future__ import annotations

import gc
import json
from pathlib import Path

import onnx
import onnxruntime as ort
import pytest

import planner
from planner.errors import InfeasibleBudgetError, ModelError, UsageError
from planner.native import counts
from planner.plan.problem import ActionKind
from planner.results import OptimizeResult
from planner.runtime.feeds.inputs import make_inputs
from planner.runtime.profile import read_profile
from planner.runtime.swapping import CHECK_SWAPS, LINK_JITTER_US, LINK_MBPS, register_library

pytestmark = pytest.mark.usefixtures("native_library")

ZOO = Path(__file__).parents[2] / "models" / "zoo"
RACE = {CHECK_SWAPS: "1", LINK_MBPS: "500", LINK_JITTER_US: "200"}
STEPS = 3
SETTINGS = {"swap": "only", "copies": "overlapped", "workers": 1, "time_limit_s": 2.0}


@pytest.fixture(
    scope="module",
    params=[("gpt", "60%"), ("gpt", "40%"), ("resnet18", "40%"), ("mlp_adamw", "40%")],
    ids=lambda case: "-".join(case),
)
def made(request, tmp_path_factory) -> OptimizeResult:
    name, budget = request.param
    folder = tmp_path_factory.mktemp("overlapped")
    return planner.optimize(
        ZOO / f"{name}.onnx",
        budget=budget,
        output=folder / "out.onnx",
        plan_path=folder / "plan.json",
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


def swaps_of(result: OptimizeResult) -> int:
    return sum(a.kind is ActionKind.SWAP_OUT for a in result.plan.schedule)


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
    assert swaps_of(made) > 0
    assert after.swaps_out - before.swaps_out == STEPS * swaps_of(made)
    assert after.swaps_in - before.swaps_in == STEPS * swaps_of(made)
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


def test_the_schedule_fits_without_a_copy_that_is_waited_for_in_vain(made):
    """Each tensor's nodes are SwapOut, SwapOutDone, SwapIn, SwapInDone, in turns."""
    turns = ["SwapOut", "SwapOutDone", "SwapIn", "SwapInDone"]
    ops = made.after.graph.operations
    kinds: dict[str, list[str]] = {}
    nodes = {n.name: n for n in onnx.load(made.output_path, load_external_data=False).graph.node}
    for step in made.after.timeline.order:
        if ops[step].op_type in turns:
            props = {p.key: p.value for p in nodes[ops[step].name].metadata_props}
            kinds.setdefault(props["pkg.planner.tensor"], []).append(ops[step].op_type)
    assert kinds
    for found in kinds.values():
        assert found == turns * (len(found) // 4)
    first = ops[made.after.timeline.order[0]]
    assert first.op_type == "SwapBegin"


def test_apply_reads_the_plan_back_to_the_same_bytes(made, tmp_path):
    again = planner.apply(made.model_path, made.plan_path, output=tmp_path / "again.onnx")
    assert again.read_bytes() == made.output_path.read_bytes()


def test_it_is_opened_by_what_the_file_says(made):
    feeds, _ = make_inputs(made.model_path, seed=1)
    options = planner.session_options(made.output_path)
    session = ort.InferenceSession(made.output_path, options)
    found = [a.tobytes() for a in session.run(None, feeds)]
    assert found == [a.tobytes() for a in planner.open_session(made.output_path).run(None, feeds)]


# -- of one file ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def gpt(tmp_path_factory) -> OptimizeResult:
    folder = tmp_path_factory.mktemp("gpt")
    return planner.optimize(
        ZOO / "gpt.onnx",
        budget="60%",
        host_budget="12MiB",
        output=folder / "out.onnx",
        plan_path=folder / "plan.json",
        resident="device",
        **SETTINGS,
    )


def test_swaps_are_verified_measured_and_capped(gpt):
    found = gpt.verification
    assert found is not None and found.passed, found
    assert found.copies.planned == found.copies.ran == 2 * swaps_of(gpt)
    assert found.copies.planned_bytes == gpt.plan.planned.swap_out_bytes + (
        gpt.plan.planned.swap_in_bytes
    )
    for check in found.memory:
        assert check.how == "measured" and check.worst == ()
    rewritten = found.memory[-1]
    assert (rewritten.model, rewritten.options) == ("rewritten", "recommended")
    assert rewritten.live_bytes == gpt.plan.planned.peak_bytes <= gpt.plan.budget_bytes
    assert [cap.passed for cap in found.caps] == [False, True]
    (said,) = [note for note in found.notes if "watched" in note]
    assert "no violations" in said


def test_the_host_budget_bounds_the_slots(gpt):
    rewritten = opened(gpt.output_path)
    gc.collect()
    feeds, _ = make_inputs(gpt.model_path, seed=0)
    rewritten.run(None, feeds)
    assert 0 < counts().slot_bytes == gpt.plan.planned.host_bytes <= 12 << 20


def test_a_plan_without_its_waits_is_refused(gpt, tmp_path):
    data = json.loads(gpt.plan_path.read_text())
    data["schedule"] = [a for a in data["schedule"] if a["kind"] != "swap-out-done"]
    path = tmp_path / "old.plan.json"
    path.write_text(json.dumps(data))
    with pytest.raises(ModelError, match="make the plan again"):
        planner.apply(gpt.model_path, path, output=tmp_path / "out.onnx")


def test_swaps_that_are_exchanged_fail_verification(gpt, tmp_path):
    model = onnx.load(gpt.output_path)
    ins = [n for n in model.graph.node if n.op_type == "SwapIn"]
    shape = {n.output[0]: n.attribute for n in ins}
    first, second = next(
        (a, b)
        for i, a in enumerate(ins)
        for b in ins[i + 1 :]
        if [x for x in shape[a.output[0]] if x.name in ("dtype", "shape")]
        == [x for x in shape[b.output[0]] if x.name in ("dtype", "shape")]
        and _apart(model, a, b)
    )
    first.input[0], second.input[0] = second.input[0], first.input[0]
    path = tmp_path / "exchanged.onnx"
    onnx.save(model, path)
    try:
        found = planner.verify(gpt.model_path, path, plan=gpt.plan_path)
    except ModelError:
        return
    assert not found.passed


def _apart(model: onnx.ModelProto, a: onnx.NodeProto, b: onnx.NodeProto) -> bool:
    """Whether what two nodes read is made before either of them."""
    place = {n.name: i for i, n in enumerate(model.graph.node)}
    maker = {o: n.name for n in model.graph.node for o in n.output}
    return all(place[maker[n.input[0]]] < min(place[a.name], place[b.name]) for n in (a, b))


def test_a_wait_that_reads_no_tensor_is_refused(gpt, tmp_path):
    """The control: what keeps a buffer until its copy is done is an input of SwapOutDone."""
    model = onnx.load(gpt.output_path)
    node = next(n for n in model.graph.node if n.op_type == "SwapOutDone")
    del node.input[1]
    path = tmp_path / "bare.onnx"
    onnx.save(model, path)
    with pytest.raises(Exception, match="SwapOutDone"):
        opened(path).run(None, make_inputs(gpt.model_path, seed=0)[0])


def test_a_file_with_swaps_is_not_planned_again(gpt):
    with pytest.raises(ModelError, match="plan the model that this file was made of"):
        planner.analyze(gpt.output_path)


def test_without_the_library_it_is_said_first(gpt, monkeypatch, tmp_path):
    monkeypatch.setattr(planner.native, "SOURCES", tmp_path)
    with pytest.raises(UsageError, match=r"--copies overlapped: .*python -m planner.native"):
        planner.optimize(gpt.model_path, budget="60%", copies="overlapped", dry_run=True)
    with pytest.raises(UsageError, match="python -m planner.native"):
        planner.session_options(gpt.output_path)


def test_a_host_budget_that_no_plan_keeps_is_refused(gpt, tmp_path):
    with pytest.raises(InfeasibleBudgetError):
        planner.optimize(
            gpt.model_path,
            budget="40%",
            host_budget="1MiB",
            resident="device",
            output=tmp_path / "out.onnx",
            verify=False,
            **SETTINGS,
        )

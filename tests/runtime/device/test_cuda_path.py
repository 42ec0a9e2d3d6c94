"""The way to a CUDA device, with the CPU's provider in its place: what is asked of one, in this process.

Memory, order, copies, caps and times come from ONNX Runtime as on a GPU; what differs is the arena that
is registered, and that tensors on the host lie in it as well. `reports/cuda.md` has what a GPU did.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st

import planner
from planner.fit.demands import demands_of
from planner.fit.search import least_arena
from planner.pipeline.prepare import costing, prepared
from planner.runtime import options
from planner.runtime.device import client, op_times, worker
from planner.runtime.device.caps import cap_on_device
from planner.runtime.device.predict import bfc_device
from planner.runtime.device.side import Side
from planner.runtime.device.verify import DeviceJob
from planner.runtime.feeds.inputs import make_inputs
from planner.runtime.memory.arena import ArenaSettings, capped
from planner.runtime.memory.bfc import ArenaFullError, Growth
from planner.runtime.options import Opening
from planner.runtime.profile import create_session, run_session
from planner.targets import HOST, Target
from planner.targets.cuda import CUDA
from planner.targets.cuda.backend import Cuda

MLP, GPT = (
    Path(__file__).parents[3] / "models" / "zoo" / f"{n}.onnx" for n in ("mlp_adamw", "gpt")
)
STAND_IN = replace(CUDA, provider=HOST.provider)
MIB = 2**20


def on_host(path: Path) -> set[str]:
    """Nodes that CUDA leaves to the CPU: sizes of what lies on the host."""
    nodes = onnx.load(path, load_external_data=False).graph.node
    hosts = {o for n in nodes if n.op_type == "MemcpyToHost" for o in n.output}
    return {n.name for n in nodes if n.op_type == "Size" and n.input[0] in hosts}


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    """Questions to a CUDA device are answered by the CPU's provider, under CUDA's name."""

    def cap_arena(made: Any, region_bytes: int, *, limit_bytes: int, target: Target) -> None:
        assert target.name == CUDA.name
        options.cap_arena(made, region_bytes, limit_bytes=limit_bytes)

    def ask(_: object, request: dict[str, Any]) -> Mapping[str, Any]:
        answer = worker._WORK[request["do"]](STAND_IN, {"settings": {}, **request})
        answer = json.loads(json.dumps(answer))
        if "model" not in request:
            return answer
        hosts = on_host(Path(request["model"]))
        if request["do"] == "optimize":
            answer["placed"] = {n: CUDA.provider for n in answer["placed"] if n not in hosts}
            answer["placed"] |= dict.fromkeys(hosts, HOST.provider)
        for event in answer.get("events", ()):
            event["provider"] = HOST.provider if event["name"] in hosts else CUDA.provider
        return answer

    monkeypatch.setattr(worker, "cap_arena", cap_arena)
    monkeypatch.setattr(client, "_ask", ask)
    monkeypatch.setattr(Cuda, "is_installed", lambda _: True)
    monkeypatch.setattr(costing, "can_be_timed", lambda target: target.name == "cuda")
    monkeypatch.setattr(prepared, "can_be_timed", lambda target: target.name == "cuda")


@pytest.mark.usefixtures("cuda")
def test_a_plan_is_timed_capped_and_verified(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    output = tmp_path / "planned.onnx"
    result = planner.optimize(
        GPT,
        budget="60%",
        output=output,
        device="cuda",
        calibrate=True,
        time_limit_s=1.0,
        verify=False,
    )
    assert result.plan.cost_source.startswith("measured")
    original = Side(
        path=GPT,
        graph=result.before.graph,
        order=result.before.timeline.order,
        level="extended",
    )
    inputs, source = make_inputs(GPT, 0, {}, None)
    check = DeviceJob(
        target=CUDA,
        original=original,
        rewritten=Side(path=output, graph=result.after.graph, order=result.after.timeline.order),
        inputs=inputs,
        inputs_source=source,
        budget_bytes=result.plan.budget_bytes,
        timing_runs=1,
        bound=True,
    ).run()
    assert check.passed, check.failures
    assert all(order.equal for order in check.orders)
    assert {(m.model, m.options) for m in check.memory} == {
        (model, options)
        for model in ("original", "rewritten")
        for options in ("default", "recommended")
    }
    assert all(m.live_bytes == m.predicted_live_bytes for m in check.memory)
    before, after = check.caps
    assert after.passed and not before.passed and before.expected is False
    assert after.cap_bytes == before.cap_bytes >= result.plan.budget_bytes
    assert check.time is not None and check.time.ratio > 0


@pytest.mark.usefixtures("cuda")
def test_nodes_are_timed_by_name() -> None:
    inputs, _ = make_inputs(MLP, 0, {}, None)
    found = client.op_times(CUDA, MLP, inputs, level="extended")
    assert found.runs > 1 and found.pin_us >= 0
    assert len(found.kernel_us) > 200 and all(us >= 0 for us in found.kernel_us.values())
    assert min(found.copy_out_bytes_per_s, found.pageable_bytes_per_s) > 0


@pytest.mark.usefixtures("cuda")
def test_an_arena_that_is_too_small_says_so_and_the_next_is_tried() -> None:
    inputs, _ = make_inputs(MLP, 0, {}, None)
    sizes = [(size * MIB, size * MIB) for size in (1, 2, 200)]
    found = client.capped(CUDA, MLP, inputs, sizes)
    assert found.passed == 2 and len(found.messages) == 2
    plain = run_session(create_session(MLP, Opening().options()), inputs)
    assert all(np.array_equal(a, b) for a, b in zip(found.outputs.values(), plain, strict=True))
    none = client.capped(CUDA, MLP, inputs, sizes[:1])
    assert none.passed is None and not none.outputs and "are needed" in none.messages[0]


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory) -> planner.OptimizeResult:
    """A plan for CUDA without one, by the provider's list of kernels."""
    output = tmp_path_factory.mktemp("planned") / "mlp.onnx"
    return planner.optimize(
        MLP, budget="60%", output=output, device="cuda", time_limit_s=0.5, verify=False
    )


def test_what_fits_an_arena_with_inputs_and_outputs_in_it_is_known(
    planned: planner.OptimizeResult,
) -> None:
    """Two programs say whether a plan fits: the planner's, which is compiled, and the replay's."""
    graph, order = planned.after.graph, planned.after.timeline.order
    budget = planned.plan.budget_bytes
    fed = bfc_device.device_demand(graph, order).fed
    assert sum(fed) > 0

    def fits(region_bytes: int) -> bool:
        try:
            bfc_device.forecast_arena(graph, order, capped(region_bytes))
        except ArenaFullError:
            return False
        return True

    arenas: list[tuple[int, int]] = []

    def tried(_target: object, _path: object, _inputs: object, asked: Any, **_: Any) -> Any:
        arenas.extend(asked)
        return client.CappedRun(passed=0, messages=(), outputs={})

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(client, "capped", tried)
        side = Side(path=MLP, graph=graph, order=order)
        found, _ = cap_on_device(CUDA, (side, side), {}, budget, live_peak_bytes=3 * budget)
        none, _ = cap_on_device(CUDA, (side, side), {}, 1 << 20, live_peak_bytes=3 * budget)
    assert arenas[-2:] == [(2 << 20, 2 << 20)] * 2  # where the replay fits nowhere, the largest
    assert none[1].over_budget_bytes == 1 << 20
    del arenas[-2:]
    *rising, alike = arenas  # the last one is the original's
    assert all(fits(region) for region, _ in arenas) and rising == sorted(set(rising))
    assert rising[0][1] >= budget and alike == (rising[0][1], rising[0][1])
    units = {op: i for i, op in enumerate(order)}
    demands = demands_of(graph, order, units, {}, CUDA)
    for cap in (budget // 2, budget, *(cap for _, cap in arenas)):
        assert (least_arena(demands, cap) <= cap) == fits(cap)
    assert found[0].expected is False and found[0].failure  # the original ran, too: no


def test_the_second_run_holds_more_by_default(tmp_path: Path) -> None:
    """Measured on an H100 (reports/cuda.md): 1.6 to 2 times as much, for the pattern's block.

    The MLP is too small for it: the arena's least regions decide there what is more.
    """
    result = planner.optimize(
        GPT, budget="60%", output=tmp_path / "p.onnx", device="cuda", time_limit_s=0.5, verify=False
    )
    graph, order = result.after.graph, result.after.timeline.order
    settings = ArenaSettings(pattern=True, reuse=True, growth=Growth.EXACT)
    first, both = (
        bfc_device.forecast_arena(graph, order, settings, runs=runs).held_bytes for runs in (1, 2)
    )
    spared = replace(settings, pattern=False, reuse=False)
    assert bfc_device.forecast_arena(graph, order, spared).held_bytes <= first < both


@given(
    events=st.dictionaries(st.text(max_size=3), st.floats(0, 1e6), min_size=1),
    chain=st.floats(0.1, 100),
    issue=st.floats(0, 50),
)
def test_times_of_nodes_rise_with_their_events(
    events: dict[str, float], chain: float, issue: float
) -> None:
    found = op_times.kernel_us(events, chain, issue)
    assert found.keys() == events.keys() and all(us >= 0 for us in found.values())
    assert op_times.kernel_us({"": chain}, chain, issue)[""] == pytest.approx(issue)
    ranked = sorted(events, key=events.__getitem__)
    times = [found[name] for name in ranked]
    assert all(a <= b + 1e-9 * max(1.0, b) for a, b in itertools.pairwise(times))
    for name, us in events.items():
        if us > chain:
            assert found[name] - issue == pytest.approx(us - chain, abs=1e-6)


def test_rates_come_of_what_large_copies_take_more_than_small_ones() -> None:
    small, large = op_times.SMALL_BYTES, op_times.LARGE_BYTES
    issued = {
        "chain": [1e-3, 1e-3 + 5e-6 * (op_times.LONG - op_times.SHORT)],
        "out": [1.0, 1.0 + (large - small) / 5e10],
        "both": [1.0, 1.0 + (large - small) / 2e10],
        "fed": [1.0, 1.0 + (large - small) / 1e10],
    }
    found = op_times.times_of({"event_us": {"a": 20.0}, "chain_us": 15.0, "runs": 4}, issued)
    assert found.pin_us == pytest.approx(5.0)
    assert found.kernel_us["a"] == pytest.approx(10.0)
    assert found.copy_out_bytes_per_s == pytest.approx(5e10)
    assert found.copy_in_bytes_per_s == pytest.approx(1 / (1 / 2e10 - 1 / 5e10))
    assert found.pageable_bytes_per_s == pytest.approx(1e10)

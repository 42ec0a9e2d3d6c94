"""Where operation times come from: measured where the model can run here in seconds, else predicted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto as T
from onnx import helper as h

from planner import api
from planner.cost.measured import Cache
from planner.errors import UsageError
from planner.pipeline.answer.explain import explain
from planner.pipeline.prepare import costing
from planner.pipeline.prepare.costing import MEASURED, VARIABLE
from planner.runtime import op_times
from planner.runtime.options import Opening
from planner.runtime.profile import run_session

MLP = Path(__file__).parents[2] / "models" / "zoo" / "mlp_adamw.onnx"


@pytest.fixture(autouse=True)
def measuring(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a user has it on a machine that does nothing else, with an empty cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(op_times, "waited_share", lambda *_: 0.0)
    monkeypatch.delenv(VARIABLE)


def products(folder: Path, rows: int | str) -> Path:
    """relu(x w) w, for x of so many rows."""
    graph = h.make_graph(
        [
            h.make_node("MatMul", ["x", "w"], ["a"], name="first"),
            h.make_node("Relu", ["a"], ["b"], name="relu"),
            h.make_node("MatMul", ["b", "w"], ["y"], name="second"),
        ],
        "products",
        [h.make_tensor_value_info(n, T.FLOAT, [s, 64]) for n, s in (("x", rows), ("w", 64))],
        [h.make_tensor_value_info("y", T.FLOAT, [rows, 64])],
    )
    path = folder / "products.onnx"
    onnx.save(h.make_model(graph, ir_version=10, opset_imports=[h.make_opsetid("", 21)]), path)
    return path


def test_times_are_measured_once_and_kept(tmp_path: Path) -> None:
    path = products(tmp_path, 64)
    first, again = (api.analyze(path) for _ in range(2))
    assert first.cost_source == MEASURED
    assert again.cost_source == f"{MEASURED} in an earlier run"
    assert first.default.duration_us == again.default.duration_us
    anew = api.analyze(path, calibrate=True)
    assert anew.cost_source == MEASURED


def test_times_of_a_busy_machine_are_kept_until_it_is_idle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same command gives the same plan there; a quiet machine gives better times."""
    path = products(tmp_path, 64)
    monkeypatch.setattr(op_times, "waited_share", lambda *_: 0.5)
    monkeypatch.setattr(costing, "is_idle", lambda: False)
    busy, again = (api.analyze(path) for _ in range(2))
    assert busy.cost_source == MEASURED
    assert again.cost_source == f"{MEASURED} in an earlier run"
    assert busy.default.duration_us == again.default.duration_us
    for found in (busy, again):
        assert any("waited for a core for 50" in said for said in found.assumptions)
    monkeypatch.setattr(op_times, "waited_share", lambda *_: 0.0)
    monkeypatch.setattr(costing, "is_idle", lambda: True)
    assert api.analyze(path).cost_source == MEASURED
    last = api.analyze(path)
    assert last.cost_source == f"{MEASURED} in an earlier run"
    assert not any("waited for a core" in said for said in last.assumptions)


def test_busy_times_are_better_than_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An idle machine that cannot run the model any more has no better ones."""
    path = products(tmp_path, 64)
    monkeypatch.setattr(op_times, "waited_share", lambda *_: 0.5)
    api.analyze(path)
    monkeypatch.setattr(costing, "is_idle", lambda: True)
    monkeypatch.setattr(costing.Costing, "_why_not", lambda _: "no room")
    assert api.analyze(path).cost_source == f"{MEASURED} in an earlier run"


@pytest.mark.parametrize(
    ("steps_s", "runs"),
    [((6.0, 5.0), 1), ((4.0, 4.0, 4.0), 1), ((20.0,), 1), ((3.0, 3.0, 0.3, 0.3, 4.0), 3)],
)
def test_measuring_ends_at_its_limit_and_keeps_what_it_has(
    steps_s: tuple[float, ...], runs: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock is told how long each run takes; the runs themselves are ONNX Runtime's."""
    now, left = [0.0], list(steps_s)

    def run(*asked: Any) -> Any:
        now[0] += left.pop(0)  # a run too many has no time left here
        return run_session(*asked)

    monkeypatch.setattr(op_times.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(op_times, "run_session", run)
    feeds = {name: np.ones((64, 64), np.float32) for name in ("x", "w")}
    found = op_times.op_times(products(tmp_path, 64), feeds, Opening(threads=1), nodes=3)
    assert not left
    assert found.runs == runs
    assert set(found.kernel_us) == {"first", "relu", "second"}


def test_kept_times_that_a_step_belies_are_dropped(tmp_path: Path) -> None:
    def said() -> tuple[str, ...]:
        result = api.optimize(
            MLP,
            budget="90%",
            output=tmp_path / "planned.onnx",
            time_limit_s=1.0,
            force=True,
        )
        assert result.verification is not None
        return result.verification.notes

    assert not any("measures them again" in note for note in said())
    (kept,) = (tmp_path / "cache" / "planner").glob("times-*.json")
    content = json.loads(kept.read_text())
    content["kernel_us"] = {name: 100 * us for name, us in content["kernel_us"].items()}
    kept.write_text(json.dumps(content))
    assert any("measures them again" in note for note in said())
    assert not kept.exists()


def test_nothing_runs_where_that_is_not_wanted(tmp_path: Path) -> None:
    path = products(tmp_path, 64)
    assert api.analyze(path, calibrate=False).cost_source == "roofline of cpu"
    assert api.analyze(path, hardware="t4").cost_source == "roofline of t4"
    assert not (tmp_path / "cache").exists()


def test_the_environment_says_never(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "never")
    path = products(tmp_path, 64)
    assert api.analyze(path).cost_source == "roofline of cpu"
    assert api.analyze(path, calibrate=True).cost_source == MEASURED


def test_what_has_no_room_here_is_predicted(tmp_path: Path) -> None:
    path = products(tmp_path, "n")
    large = api.analyze(path, dims={"n": 1 << 36})
    assert large.cost_source == "roofline of cpu"
    assert any("too little memory is free" in said for said in large.assumptions)
    assert api.analyze(path, dims={"n": 64}).cost_source == MEASURED


def test_what_cannot_run_is_predicted_and_says_why(tmp_path: Path) -> None:
    path = products(tmp_path, 64)
    path.with_suffix(".inputs.json").write_text("no recipes")
    found = api.analyze(path)
    assert found.cost_source == "roofline of cpu"
    assert any("could not be run to measure them" in said for said in found.assumptions)
    with pytest.raises(UsageError, match="input recipes"):
        api.analyze(path, calibrate=True)


def test_a_plan_of_measured_times_is_explained_with_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In an hour in which a byte from memory takes a second, too: caches save a tenth at most."""
    slow = Cache(bytes=1 << 18, missed_bytes_per_s=1.0)
    monkeypatch.setattr(op_times, "cache_of", lambda _: slow)
    plan_path = tmp_path / "plan.json"
    result = api.optimize(
        MLP,
        budget="75%",
        output=tmp_path / "planned.onnx",
        plan_path=plan_path,
        resident="device",
        swap="none",
        time_limit_s=1.0,
        verify=False,
    )
    plan = result.plan
    assert plan.cost_source == MEASURED
    assert plan.planned.pins_us > 0
    # operations that run again, and nodes that pin the order, are all that is added
    added_us = plan.planned.time_us - plan.best_order.time_us
    assert added_us == pytest.approx(plan.planned.recompute_us + plan.planned.pins_us)
    assert sum(result.after.duration_us) == pytest.approx(plan.planned.time_us)
    assert plan.planned.step_us == plan.planned.time_us + plan.planned.cache_us
    assert plan.planned.cache_us >= -0.1 * plan.baseline.time_us
    explained = explain(MLP, plan_path, plan.decisions[0].tensor, time_limit_s=1.0)
    assert explained.times_from.startswith(MEASURED)

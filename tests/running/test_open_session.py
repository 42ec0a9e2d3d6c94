"""`planner.open_session`: the budget holds in it, whatever a script keeps of its results."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest

import planner
from planner.errors import InfeasibleBudgetError
from planner.files.structuring import read_json
from planner.plan.planfile import Plan
from planner.results import OptimizeResult
from planner.runtime.feeds.inputs import make_inputs
from planner.runtime.opened import needs_of

ZOO = Path(__file__).parents[2] / "models" / "zoo"
MODEL = ZOO / "mlp_adamw.onnx"


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory) -> OptimizeResult:
    folder = tmp_path_factory.mktemp("held")
    result = planner.optimize(
        MODEL,
        budget="80%",
        output=folder / "planned.onnx",
        plan_path=folder / "plan.json",
        time_limit_s=0.5,
    )
    assert result.verification is not None and result.verification.passed
    return result


def train(session: ort.InferenceSession, steps: int) -> list[bytes]:
    """Results of each step, whose new values are the next one's inputs; a step's are kept until the next
    one's are there."""
    feeds, _ = make_inputs(MODEL)
    feeds = dict(feeds)
    names = [output.name for output in session.get_outputs()]
    seen = []
    results: dict[str, np.ndarray] = {}
    for _ in range(steps):
        results = dict(zip(names, map(np.asarray, session.run(names, feeds)), strict=True))
        seen.append(b"".join(results[name].tobytes() for name in names))
        feeds |= {n: results[f"{n}_new"] for n in feeds if f"{n}_new" in results}
    return seen


def test_a_loop_has_the_same_bits_however_the_file_is_opened(planned: OptimizeResult) -> None:
    assert planned.output_path is not None
    path = str(planned.output_path)
    wanted = train(ort.InferenceSession(str(MODEL)), 6)
    assert wanted[0] != wanted[-1], "nothing is trained"
    assert train(ort.InferenceSession(path), 6) == wanted
    assert train(ort.InferenceSession(path, planner.session_options(path)), 6) == wanted
    assert train(planner.open_session(path), 6) == wanted


def test_the_file_asks_for_a_pool_within_the_budget(planned: OptimizeResult) -> None:
    """And the pool is one that binds: with a third less the model does not run."""
    plan, path = planned.plan, planned.output_path
    assert plan.budget_of == "held" and plan.pool is not None and path is not None
    assert needs_of(path).pool == plan.pool and plan.pool.is_proved and plan.arena is None
    assert plan.pool == read_json(path.with_name("plan.json"), Plan, what="a plan").pool
    (held,) = (a for a in planned.after.arena if a.options == "recommended")
    assert held.total_bytes <= plan.budget_bytes
    assert planned.verification is not None
    (seen,) = (
        m
        for m in planned.verification.memory
        if (m.model, m.options) == ("rewritten", "recommended")
    )
    assert seen.held_bytes is not None
    assert seen.held_bytes + seen.beside_bytes <= plan.budget_bytes
    assert seen.predicted_held_bytes is not None
    assert seen.held_bytes == seen.predicted_held_bytes <= plan.pool.bytes
    less = planner.session_options(path, pool=f"{plan.pool.bytes * 2 // 3}B")
    less.log_severity_level = 4
    with pytest.raises(Exception, match="bytes were asked for; the pool has"):
        ort.InferenceSession(str(path), less).run(None, dict(make_inputs(MODEL)[0]))


def test_what_no_session_holds_is_refused_and_live_bytes_are_not(tmp_path: Path) -> None:
    """At the least live peak whole pages are too much, as a rule; what the error names is held."""

    def made(budget: str, **more: str) -> OptimizeResult:
        return planner.optimize(
            MODEL,
            budget=budget,
            output=tmp_path / "o.onnx",
            time_limit_s=0.5,
            verify=False,
            force=True,
            **more,  # type: ignore[arg-type]
        )

    with pytest.raises(InfeasibleBudgetError) as nothing:
        made("1B")
    least = nothing.value.least_peak_bytes
    live = made(f"{least}B", budget_of="live").plan
    assert live.planned.peak_bytes <= least
    try:
        held = made(f"{least}B").plan  # another order of the actions, or other actions
    except InfeasibleBudgetError as refused:
        assert "--budget-of live" in str(refused)
        assert refused.least_peak_bytes > least
        held = made(f"{int(1.02 * refused.least_peak_bytes)}B").plan
    assert held.pool is not None and held.budget_of == "held"

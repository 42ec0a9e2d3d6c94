"""Which sessions a command creates: what takes most of its time with a large graph."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import onnxruntime as ort
import pytest

from planner import api
from planner.pipeline.answer import optimizing
from planner.results import OptimizeResult
from planner.runtime import profiled
from planner.runtime.judge.cap import both as cap_both
from planner.runtime.judge.cap.run import Capped
from planner.runtime.options import Opening

ZOO = Path(__file__).parents[2] / "models" / "zoo"
ALL = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
DISABLED = ort.GraphOptimizationLevel.ORT_DISABLE_ALL


@dataclass
class _Seen:
    """Sessions of files by the file's name and the level; models under a cap likewise."""

    sessions: list[tuple[str, Any]] = field(default_factory=list)
    capped: list[tuple[str, str]] = field(default_factory=list)

    def levels(self, name: str) -> list[Any]:
        return [level for seen, level in self.sessions if seen == name]


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Iterator[_Seen]:
    found = _Seen()
    create, run = ort.InferenceSession, cap_both.run_capped

    def created(model: Any, options: Any = None, **more: Any) -> ort.InferenceSession:
        name = Path(model).name if isinstance(model, str) else "in memory"
        found.sessions.append((name, options.graph_optimization_level))
        return create(model, options, **more)

    def capped(path: Path, inputs: Any, cap: int, opening: Opening, **more: Any) -> Capped:
        found.capped.append((path.name, opening.level))
        return run(path, inputs, cap, opening, **more)

    monkeypatch.setattr(ort, "InferenceSession", created)
    monkeypatch.setattr(cap_both, "run_capped", capped)
    yield found


def optimized(model: Path, folder: Path, **more: Any) -> OptimizeResult:
    result = api.optimize(
        model,
        budget="80%",
        output=folder / "o.onnx",
        time_limit_s=1.0,
        swap="none",
        **more,
    )
    assert result.verification is not None and result.verification.passed
    return result


def rewritten_levels(seen: _Seen) -> list[Any]:
    """Of the sessions of the rewritten file, which has a temporary name until it is verified."""
    return [level for name, level in seen.sessions if name.startswith(".planner-tmp-")]


def test_the_optimizers_see_each_file_once_for_each_thing_that_is_claimed(
    tmp_path: Path, seen: _Seen
) -> None:
    """One session of the file says what its graph is, one is judged; the rewritten file is seen under
    default options and under its own; times take no more, and processes of their own the rest."""
    result = optimized(ZOO / "gpt.onnx", tmp_path)
    assert seen.levels("gpt.onnx") == [ALL, ALL]
    assert rewritten_levels(seen) == [ALL, ALL]
    assert result.verification is not None and result.verification.time is not None
    assert ("optimized.onnx", "disabled") in seen.capped  # the original, as its session wrote it
    assert all(name == "optimized.onnx" for name, _ in seen.capped)  # the other ran in its own pool
    assert [cap.passed for cap in result.verification.caps] == [False, True]


def test_times_are_measured_on_the_optimized_graph(tmp_path: Path, seen: _Seen) -> None:
    result = optimized(ZOO / "mlp_adamw.onnx", tmp_path, calibrate=True)
    assert result.plan.cost_source.startswith("measured on this machine")
    assert seen.levels("mlp_adamw.onnx") == [ALL, ALL]
    assert seen.levels("optimized.onnx") == [DISABLED]


def test_a_large_graph_is_optimized_once_for_the_plan_and_for_the_verification(
    tmp_path: Path, seen: _Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = optimized(ZOO / "mlp_adamw.onnx", tmp_path, seed=1)
    seen.sessions.clear()
    for module in (profiled, optimizing):
        monkeypatch.setattr(module, "MANY_NODES", 1)
    monkeypatch.setattr(profiled.os, "cpu_count", lambda: 2)
    result = optimized(ZOO / "mlp_adamw.onnx", tmp_path, seed=1, force=True)
    assert seen.levels("mlp_adamw.onnx") == [ALL]
    assert seen.levels("optimized.onnx") == [ALL]  # nothing changes any more
    assert [op.name for op in result.before.graph.operations] == [
        op.name for op in plain.before.graph.operations
    ]
    assert result.before.timeline.order == plain.before.timeline.order
    assert rewritten_levels(seen) == [ALL, ALL]
    assert result.verification is not None
    assert [c.level for c in result.verification.orders] == ["all"]
    assert all(c.identical for c in result.verification.outputs)


def test_a_large_graph_is_optimized_once_for_the_plan_and_for_its_comparison(
    tmp_path: Path, seen: _Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    def planned() -> OptimizeResult:
        return api.optimize(ZOO / "mlp_adamw.onnx", budget="80%", verify=False, time_limit_s=1.0)

    compared = [text for text in planned().plan.assumptions if "compared with the file" in text]
    assert len(compared) == 1 and "the same bits as in a session of the file" in compared[0]
    in_memory = seen.levels("in memory")
    seen.sessions.clear()
    monkeypatch.setattr(optimizing, "MANY_NODES", 1)
    again = planned()
    assert [text for text in again.plan.assumptions if "compared" in text] == compared
    assert seen.levels("mlp_adamw.onnx") == [ALL]
    in_memory.remove(ALL)  # that of the file, to compare its numbers
    assert seen.levels("in memory") == in_memory

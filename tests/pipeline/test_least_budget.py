"""The least budget that planner prints, asked for as printed, is one that it can meet."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal

import onnx
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from planner import api
from planner.errors import InfeasibleBudgetError
from planner.units import format_budget
from tests.graphs import onnx_graphs

FEW = settings(
    max_examples=3,
    deadline=None,
    phases=(Phase.explicit, Phase.reuse, Phase.generate),  # to shrink takes minutes
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
_LEAST = re.compile(r"the least peak found is ([\d.]+ \w+)(?: = ([\d.]+ \w+))?")
Swap = Literal["auto", "none"]


def least_printed(path: Path, swap: Swap) -> list[str]:
    """Both forms of the least budget, of the error's own words."""
    with pytest.raises(InfeasibleBudgetError) as refused:
        api.optimize(path, budget="1B", swap=swap, time_limit_s=1, dry_run=True)
    match = _LEAST.search(str(refused.value))
    assert match is not None
    return [form for form in match.groups() if form is not None]


@FEW
@given(proto=onnx_graphs(max_nodes=12), swap=st.sampled_from(["auto", "none"]))
def test_the_least_budget_of_a_refusal_is_met(
    proto: onnx.ModelProto, swap: Swap, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("least")
    path = folder / "m.onnx"
    onnx.save(proto, path)
    for number, form in enumerate(least_printed(path, swap)):
        result = api.optimize(
            path,
            budget=form,
            budget_of="live",
            swap=swap,
            output=folder / f"{number}.onnx",
            time_limit_s=1,
            verify=number == 0,
        )
        assert number or (result.verification is not None and result.verification.passed)
        assert result.plan.planned.peak_bytes <= result.plan.budget_bytes


@FEW
@given(proto=onnx_graphs(max_nodes=12), swap=st.sampled_from(["auto", "none"]))
def test_the_least_feasible_of_an_analysis_is_met(
    proto: onnx.ModelProto, swap: Swap, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("least")
    path = folder / "m.onnx"
    onnx.save(proto, path)
    least = api.analyze(path, swap=swap, time_limit_s=1.0).least_peak_bytes
    assert least is not None
    for number, form in enumerate(format_budget(least).split(" = ")):
        result = api.optimize(
            path,
            budget=form,
            budget_of="live",
            swap=swap,
            output=folder / f"{number}.onnx",
            time_limit_s=1,
            verify=number == 0,
        )
        assert number or (result.verification is not None and result.verification.passed)
        assert result.plan.planned.peak_bytes <= result.plan.budget_bytes

"""Outputs that are rounding alone are told from outputs that are wrong."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest

from planner.results.verification import OutputComparison
from planner.runtime.inmemory import ModelInMemory
from planner.runtime.judge.compare import compare, judged
from planner.runtime.judge.noise import rounding_judged
from planner.runtime.options import Opening

TEXT = """
<ir_version: 10, opset_import: ["" : 20]>
step (float[64, 400] x, float[64, 400] mask) => (float[64, 1] cancels, float[64, 1] sum)
<int64[1] axes = {{1}}, float one = {{1.0}}>
{{
  mean = ReduceMean (x, axes)
  centred = Sub (x, mean)
  cancels = ReduceSum (centred, axes)
  is_on = Equal (mask, one)
  zero = Sub (x, x)
  kept = Where (is_on, {kept}, zero)
  sum = ReduceSum (kept, axes)
}}
"""

FEEDS = {
    "x": np.random.default_rng(0).standard_normal((64, 400), np.float32),
    "mask": np.ones((64, 400), np.float32),
}


def judged_against(tmp_path: Path, other: dict[str, np.ndarray]) -> list[OutputComparison]:
    path = tmp_path / "step.onnx"
    onnx.save(onnx.parser.parse_model(TEXT.format(kept="x")), path)
    model = ModelInMemory(data=path.read_bytes(), folder=tmp_path)
    own = model.run(FEEDS, opening=Opening(threads=1))
    comparisons = [compare(name, own[name], other.get(name, own[name])) for name in own]
    found, notes = rounding_judged(
        comparisons, path, lambda: FEEDS, opening=Opening(threads=1), seed=0
    )
    assert len(notes) == sum(a != b for a, b in zip(found, comparisons, strict=True))
    return list(found)


def test_a_sum_that_cancels_may_be_any_rounding(tmp_path: Path):
    centred = FEEDS["x"].astype(np.float64) - FEEDS["x"].mean(1, dtype=np.float64, keepdims=True)
    other = centred.astype(np.float32)[:, ::-1].sum(1, keepdims=True)
    (cancels, _) = judged_against(tmp_path, {"cancels": other})
    assert cancels.max_rel_diff > 0.1 and cancels.is_near and not cancels.identical
    assert judged([cancels], "rounding")[0] == [] and judged([cancels], "exact")[0]


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("cancels", np.full((64, 1), 1e-3, np.float32)),
        ("sum", FEEDS["x"][:, 1:].sum(1, keepdims=True)),  # one element is left out
        ("sum", np.full((64, 1), np.nan, np.float32)),
        ("sum", np.zeros((64, 1), np.float32)),  # as with another mask: a mask's bits do not move
    ],
)
def test_what_is_wrong_stays_wrong(name: str, wrong: np.ndarray, tmp_path: Path):
    found = {c.name: c for c in judged_against(tmp_path, {name: wrong})}
    assert not found[name].is_near and judged([found[name]], "rounding")[0]

"""A seeded run of the fuzzer; the long one is `python -m tests.fuzz --minutes 30`."""

from __future__ import annotations

import random
import tempfile
from collections import Counter
from pathlib import Path

import onnx
import pytest
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from tests.fuzz import campaign
from tests.fuzz.campaign import run_campaign
from tests.fuzz.cases import draw_case, feeds_of
from tests.fuzz.onnx_runtime import run
from tests.fuzz.operators import TEMPLATES
from tests.fuzz.properties import check_case

SEEDS = range(60)


@seed(1)
@settings(max_examples=8, deadline=None, database=None, suppress_health_check=list(HealthCheck))
@given(st.randoms(use_true_random=False))
def test_every_property_holds_of_graphs_that_hypothesis_draws(rng: random.Random) -> None:
    with tempfile.TemporaryDirectory() as folder:
        outcome = check_case(draw_case(rng, 8), Path(folder))
    assert outcome.findings == []


def test_a_campaign_counts_what_it_checked(tmp_path: Path) -> None:
    done = run_campaign(first_seed=100, graphs=12, workers=1, keep=tmp_path)
    assert done.findings == []
    assert done.graphs == 12
    assert done.counts["planned"] > 10
    assert done.counts["planned again"] and done.counts["verified"]


def _use_worker(script: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have campaigns run this in place of the fuzzer; LINE is what it says of a seed without finds."""
    worker = folder / "tests" / "fuzz"
    worker.mkdir(parents=True)
    (worker.parent / "__init__.py").touch()
    (worker / "__init__.py").touch()
    line = {"nodes": 1, "counts": {}, "traits": [], "mode": [], "refusal": "", "findings": []}
    (worker / "__main__.py").write_text(script.replace("LINE", repr(line)))
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PYTHONPATH", str(folder))


def test_a_process_that_dies_is_a_find_and_the_next_seeds_are_checked(
    tmp_path: Path, monkeypatch
) -> None:
    """A worker that stops at one seed, as a crash in compiled code would have it."""
    script = """
import json, os, sys

for seed in range(int(sys.argv[2]), int(sys.argv[3])):
    if seed == 3:
        os.abort()
    print(json.dumps({"seed": seed, **LINE}), flush=True)
"""
    _use_worker(script, tmp_path, monkeypatch)
    done = run_campaign(first_seed=0, graphs=6, workers=1)
    assert done.graphs == 6
    assert done.findings == [(3, "crash", "its process did not come back")]


def test_graphs_are_of_every_class_and_onnx_runtime_runs_them(tmp_path: Path) -> None:
    seen: Counter[str] = Counter()
    for number in range(150):
        case = draw_case(random.Random(number))
        seen.update(case.traits)
        if number in SEEDS:
            path = tmp_path / "model.onnx"
            onnx.save(case.model, path)
            assert run(path, feeds_of(case), level="all").outputs
    assert set(TEMPLATES) <= set(seen)
    assert {"function", "symbolic dim", "overridable initializer", "zero-size"} <= set(seen)


def test_a_seed_draws_the_same_case_each_time() -> None:
    one, other = (draw_case(random.Random(7)) for _ in range(2))
    assert one.model.SerializeToString(deterministic=True) == other.model.SerializeToString(
        deterministic=True
    )
    assert one.mode == other.mode


@pytest.mark.parametrize("is_over", [True, False], ids=["for good", "once"])
def test_a_seed_that_hangs_is_checked_once_more_before_it_is_a_find(
    is_over: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = """
import json, pathlib, sys, time

for seed in range(int(sys.argv[2]), int(sys.argv[3])):
    seen = pathlib.Path("seen")
    if seed == 3 and (IS_OVER or not seen.exists()):
        seen.touch()
        time.sleep(60)
    print(json.dumps({"seed": seed, **LINE}), flush=True)
"""
    _use_worker(script.replace("IS_OVER", repr(is_over)), tmp_path, monkeypatch)
    monkeypatch.setattr(campaign, "_HANG_S", 1.5)
    done = run_campaign(first_seed=0, graphs=6, workers=1)
    assert done.graphs == 6
    hung = [(3, "hang", "its process did not come back")]
    assert done.findings == (hung if is_over else [])

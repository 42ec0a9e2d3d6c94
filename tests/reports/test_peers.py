"""planner beside PyTorch, the real thing on a small GPT: one round of each kind of contestant."""

from __future__ import annotations

import dataclasses
import json

import pytest

pytest.importorskip("torch", reason="torch is not installed")

import numpy as np

from reports.peers import __main__ as peers
from reports.peers.contest import AS_IT_IS, FUSED, Settings, measure
from reports.peers.networks import TINY
from reports.peers.numbers import apart
from reports.peers.page import page
from reports.peers.partitioner import rows
from reports.peers.plans import Row
from reports.peers.pytorch import CHECKPOINT, EAGER

PLAN = FUSED + CHECKPOINT
SMALL = dataclasses.replace(TINY, sizes={**TINY.sizes, "layers": 2})


@pytest.fixture(scope="module")
def row() -> Row:
    settings = Settings(
        variants=(EAGER, CHECKPOINT),
        rounds=1,
        threads=1,
        limit_s=0.5,
        product=(64, 32, 64),
        partitioner=False,
        fuse=("auto",),
        say=lambda _: None,
    )
    return measure("tiny", SMALL, settings)


def test_everybody_computes_the_same(row: Row) -> None:
    for name in (CHECKPOINT, AS_IT_IS, PLAN):
        off = row["contestants"][name]["apart"]
        assert off["missing"] == []
        assert max(off["loss"], off["gradients"], off["worst"]) < 1e-5, name


def test_the_plan_stays_within_the_peak_of_checkpointing(row: Row) -> None:
    found = row["contestants"]
    assert found[CHECKPOINT]["peak"] < found[EAGER]["peak"]
    assert found[PLAN]["asked_bytes"] == found[CHECKPOINT]["peak"]
    assert found[PLAN]["peak"] <= found[CHECKPOINT]["peak"] < found[AS_IT_IS]["peak"]
    assert found[PLAN]["passed"], found[PLAN]["failures"]
    assert found[PLAN]["fused_nodes"] > 0


def test_peaks_have_parameters_and_gradients_in_them(row: Row) -> None:
    width, layers, vocabulary = (SMALL.sizes[key] for key in ("width", "layers", "vocabulary"))
    parameters = 4 * (vocabulary * width + layers * 12 * width**2)
    assert all(held["peak"] > 2 * parameters for held in row["contestants"].values())


def test_each_contestant_has_a_time_for_each_round(row: Row) -> None:
    assert set(row["times_us"]) == {EAGER, CHECKPOINT, AS_IT_IS, PLAN}
    assert all(len(times) == 1 and times[0] > 0 for times in row["times_us"].values())


def test_the_page_is_written_from_the_file_alone(row: Row, tmp_path) -> None:
    (tmp_path / "peers.json").write_text(json.dumps({"gpt": row}))
    assert peers.main(["--page-only", "--folder", str(tmp_path)]) == 0
    text = (tmp_path / "peers.md").read_text()
    assert text == page({"gpt": row}, "cpu")
    (line,) = (t for t in text.splitlines() if t.startswith(f"| {SMALL.title} |"))
    assert "`torch.utils.checkpoint` per block" in line and "`--fuse auto`" in line


def test_an_unknown_network_is_named(tmp_path, capsys: pytest.CaptureFixture[str]) -> None:
    assert peers.main(["--networks", "gpt,lenet", "--folder", str(tmp_path)]) == 2
    assert "no network 'lenet'" in capsys.readouterr().err


def test_the_solver_is_never_behind_the_partitioner() -> None:
    found = rows(SMALL, threads=1, limit_s=0.5, budgets=(0.9,))
    assert {one["price"] for one in found} == {"measured", "flops"}
    for one in found:
        assert one["peak_bytes"] < one["keep_all_bytes"]
        assert one["planner"]["peak_bytes"] <= one["peak_bytes"]
        assert one["bound"] <= one["planner"]["added"] + 1e-6
        assert one["planner"]["added"] <= one["partitioner"]["added"]


def test_numbers_that_differ_are_told_apart() -> None:
    wanted = {"loss": np.array(2.0), "a_grad": np.array([3.0, 4.0]), "b_grad": np.array([1.0])}
    found = {"loss": np.array(2.5), "a_grad": np.array([3.0, 4.5])}
    off = apart(found, wanted)
    assert off == {
        "loss": 0.25,
        "gradients": pytest.approx(0.1),
        "worst": pytest.approx(0.125),
        "missing": ["b_grad"],
    }

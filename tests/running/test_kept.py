"""Plans that are kept: which are found again, which go."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from planner.running import kept
from planner.running.outcome import Job, Outcome, Status, stamps

JOB = Job(
    model="",
    folder="",
    budget="60%",
    dims={},
    device="cpu",
    order="default",
    ort_optimize=True,
    time_limit_s=1.0,
    verify=False,
)


def test_each_thing_that_a_plan_depends_on_has_its_key(tmp_path: Path):
    model, same, other = (tmp_path / name for name in ("a.onnx", "b.onnx", "c.onnx"))
    model.write_bytes(b"1")
    same.write_bytes(b"1")
    other.write_bytes(b"2")
    job = replace(JOB, model=str(model))
    others = [
        replace(job, model=str(other)),
        replace(job, budget="61%"),
        replace(job, dims={"batch": 2}),
        replace(job, device="cuda"),
        replace(job, order="priority"),
        replace(job, ort_optimize=False),
        replace(job, time_limit_s=2.0),
        replace(job, verify=True),
    ]
    assert len({kept._key(j) for j in (job, *others)}) == 1 + len(others)
    assert kept._key(job) == kept._key(replace(job, model=str(same)))


def test_an_outcome_holds_as_long_as_its_files_do(tmp_path: Path):
    model, data, made = (tmp_path / name for name in ("m.onnx", "m.data", "made.onnx"))
    for path in (model, data, made):
        path.write_bytes(b"1")
    outcome = Outcome(status=Status.PLANNED, model=str(made), data=stamps([str(data)]))
    assert outcome.holds_for(str(model))
    elsewhere = tmp_path / "other"
    elsewhere.mkdir()
    assert not outcome.holds_for(str(elsewhere / "m.onnx"))
    assert replace(outcome, data={}).holds_for(str(elsewhere / "m.onnx"))
    data.write_bytes(b"22")
    assert not outcome.holds_for(str(model))
    made.unlink()
    assert not replace(outcome, data={}).holds_for(str(model))


def test_what_was_used_least_lately_goes(tmp_path: Path):
    folders = [tmp_path / f"{i:02d}" for i in range(kept._MOST_KEPT + 3)]
    for age, folder in enumerate(reversed(folders)):
        folder.mkdir()
        outcome = folder / "outcome.json"
        outcome.write_text("{}")
        os.utime(outcome, (1e9 - age, 1e9 - age))
    kept._forget_old(tmp_path)
    assert sorted(tmp_path.iterdir()) == folders[3:]

"""The program behind `reports/device.md`, on a network small enough for a test.

It is one program for every device: what runs here on the software one is what runs on a GPU.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from reports import device as report


@pytest.mark.usefixtures("counted_device")
def test_rows_are_measured_kept_and_rendered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch")
    tiny = "--batch 2 --seq 8 --width 16 --layers 1 --heads 1 --vocabulary 16"
    monkeypatch.setitem(report.BUILT, "bert", tiny)
    words = (
        f"device webgpu --models bert --percents 70 --swaps only --time-limit 2 --folder {tmp_path}"
    )
    monkeypatch.setattr(sys, "argv", words.split())
    report.main()
    (row,) = json.loads((tmp_path / "device.json").read_text(encoding="utf-8"))
    assert row["passed"] and report.holds(row), row["failures"]
    assert row["copies"]["ran"] == row["copies"]["planned"] and row["copies"]["extra"] == []
    assert row["live"]["rewritten"][1] <= row["budget_bytes"] < row["live"]["original"][1]
    assert {model: cap[1] for model, cap in row["cap"].items()} == {
        "original": False,
        "rewritten": True,
    }
    text = (tmp_path / "device.md").read_text(encoding="utf-8")
    assert "**1 of 1 rows hold**" in text and text.count("| bert |") == 1
    capsys.readouterr()
    report.main()  # the row is there
    assert capsys.readouterr().out == ""


def test_a_row_that_does_not_hold_is_counted_and_says_why() -> None:
    row = {"model": "bert", "asked": "70%", "swap": "only", "error": "no plan fits"}
    assert not report.holds(row)
    text = report.markdown([row], "webgpu", 5.0)
    assert "**0 of 1 rows hold**" in text and "no plan fits" in text

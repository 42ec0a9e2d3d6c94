"""The page of planner's own times says what its rows say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from reports import speed


def row(tree: str, total_s: float, **more: Any) -> dict[str, Any]:
    return {
        "model": "chain_1000",
        "tree": tree,
        "run": "later",
        "seconds": {"import": 1.0, "verify": total_s - 1.0},
        "total_s": total_s,
        "cpu_s": 2 * total_s,
        "sessions": 9,
        "nodes": 12_224,
        "added": 0.0125,
        **more,
    }


def test_trees_are_compared_row_by_row() -> None:
    page = speed.markdown({"`planner --help`": 0.1}, [row("abc", 8.0), row("now", 4.0)])
    lines = [line for line in page.splitlines() if line.startswith("| chain_1000")]
    assert lines == [
        "| chain_1000 | 12,224 | later | abc | 1.0 | 7.0 | 8.0 | 16.0 | 9 |  | +1.25% |",
        "| chain_1000 | 12,224 | later | now | 1.0 | 3.0 | 4.0 | 8.0 | 9 | 0.50 | +1.25% |",
    ]


def test_a_model_may_be_planned_with_no_run() -> None:
    subject = speed.Subject(path=Path("bert_base.onnx"), is_run=False)
    assert subject.name == "bert_base, no run"
    assert subject.options == {"verify": False, "calibrate": False}


def test_chains_reach_from_a_few_hundred_nodes_to_fourteen_thousand(tmp_path: Path) -> None:
    (path,) = speed.chains(tmp_path, [100])
    assert path.exists()
    assert max(speed.CHAINS) * 11 // 9 > 13_000

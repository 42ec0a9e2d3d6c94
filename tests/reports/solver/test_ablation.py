"""The ablation: a run without an engine is without it, and the page counts what changed."""

from __future__ import annotations

from reports.solver.ablation import markdown


def row(problem: str, left_out: str, added: float | None, bound: float | None) -> dict:
    return {
        "problem": problem, "left_out": left_out, "limit_s": 1.0, "added": added, "bound": bound,
        "engine": "greedy",
        "seconds": 2.0, "least": 1.01, "first_s": None if added is None else 0.5,
        "used": ["greedy", "anneal"],
    }  # fmt: skip


def test_the_page_counts_what_is_worse_lost_and_better():
    rows = [
        row("a", "", 0.10, 0.05), row("a", "greedy", 0.12, 0.05), row("a", "anneal", 0.09, 0.01),
        row("b", "", 0.20, 0.20), row("b", "greedy", None, None), row("b", "anneal", 0.20, 0.20),
        row("a", "refine", 0.10, 0.05),
    ]  # fmt: skip
    lines = markdown(rows).splitlines()
    assert "| greedy | 2 | 1 | 1 | 0 | 0 | 0.5 s beside 0.5 s | 100% |" in lines
    assert "| anneal | 2 | 0 | 0 | 1 | 1 | 1.0 s beside 1.0 s | 100% |" in lines
    assert "| refine | 0 | 0 | 0 | 0 | 0 |  |  |" in lines

"""How steps are timed: in turns, or in blocks where memory is short for both arenas."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnxruntime as ort
import pytest

from planner.results.verification import TimeCheck
from planner.runtime import timing
from planner.runtime.feeds.inputs import make_inputs
from planner.runtime.options import Opening
from planner.runtime.timing import QUICK, available_bytes, time_in_turns, timed_session

MODEL = Path(__file__).parents[2] / "models" / "zoo" / "mlp_adamw.onnx"


class Noted:
    """Runs two sessions of one model, and notes which ran, and whether it gave its arena back."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sessions = (self._session(), self._session())
        self.ran: list[tuple[int, bool]] = []
        self.run = timing.run_session
        monkeypatch.setattr(timing, "run_session", self._run)

    def timed(self, held_bytes: int) -> tuple[TimeCheck, str]:
        feeds, _ = make_inputs(MODEL)
        check, notes = time_in_turns(self.sessions, feeds, length=QUICK, held_bytes=held_bytes)
        return check, "; ".join(notes)

    def _session(self) -> ort.InferenceSession:
        return timed_session(MODEL, Opening(threads=1))

    def _run(self, session: Any, feeds: Any, options: ort.RunOptions) -> Any:
        try:
            given = bool(options.get_run_config_entry("memory.enable_memory_arena_shrinkage"))
        except RuntimeError:  # there is no such entry
            given = False
        self.ran.append((self.sessions.index(session), given))
        return self.run(session, feeds, options)


@pytest.fixture
def noted(monkeypatch: pytest.MonkeyPatch) -> Noted:
    return Noted(monkeypatch)


def test_models_run_in_turns_and_the_first_runs_do_not_count(noted: Noted) -> None:
    check, note = noted.timed(0)
    assert "in blocks" not in note
    assert [which for which, _ in noted.ran[:6]] == [1, 0, 0, 1, 1, 0]
    assert not any(given for _, given in noted.ran)
    counted = len(noted.ran) / 2 - QUICK.warm_ups
    assert len(check.original_us) == len(check.rewritten_us) == counted


@pytest.mark.parametrize("slow_turns", [6, 10_000])
def test_a_machine_that_changes_its_speed_is_timed_longer_and_told(
    noted: Noted, monkeypatch: pytest.MonkeyPatch, slow_turns: int
) -> None:
    """Both models take 60 ms, or 130 while memory is slow; one run of the original was not."""
    runs = [0, 0]

    def run(_: object, which: int) -> float:
        turn = runs[which] = runs[which] + 1
        is_fast = turn > slow_turns or (which, turn) == (0, 3)
        return 60e3 if is_fast else 130e3

    monkeypatch.setattr(timing._Runs, "_run", run)
    check, note = noted.timed(0)
    if slow_turns == 6:
        assert check.ratio == 1.0 and "vary" not in note
        assert QUICK.runs < len(check.original_us) < 20
    else:
        assert check.ratio > 2 and check.median_ratio == 1.0
        assert "x1.000 by the median of the turns' ratios, x2.167 by the least times" in note


def test_where_memory_is_short_no_run_that_takes_pages_from_the_system_counts(
    noted: Noted,
) -> None:
    free = available_bytes()
    if free is None:
        pytest.skip("the system does not say how much memory is free")
    check, note = noted.timed(2 * free)
    assert "in blocks" in note
    # cold runs, those that count, and one that gives back
    expected = [*[(0, False)] * 4, (0, True), *[(1, False)] * 6, (1, True), *[(0, False)] * 3]
    assert noted.ran == expected
    assert len(check.original_us) == len(check.rewritten_us) == 4

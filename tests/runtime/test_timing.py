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
        return time_in_turns(self.sessions, feeds, length=QUICK, held_bytes=held_bytes)

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

"""What becomes of a session where something is in the way: it opens, and one line says what."""

from __future__ import annotations

import threading
from pathlib import Path

import onnxruntime as ort
import pytest

from planner.errors import UsageError
from planner.running.asked import Asked
from planner.running.opening import Opener, Wanted
from tests.reliability.graphs import diamond, proto, save


@pytest.fixture
def model(tmp_path: Path) -> str:
    path = tmp_path / "m.onnx"
    save(proto(diamond()), path)
    return str(path)


def test_a_folder_that_cannot_be_made(model: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_CACHE_HOME", f"{model}/cache")  # a file
    said: list[str] = []
    asked = Asked(model=model)
    with Opener(Wanted(budget="80%"), said.append).opening(asked) as made:
        assert made == asked
    (line,) = said
    assert line.startswith(f"{model}: opened as it is, not planned: ") and "XDG_CACHE_HOME" in line
    strict = Opener(Wanted(budget="80%", strict=True), said.append)
    with pytest.raises(UsageError, match="XDG_CACHE_HOME"), strict.opening(asked):
        pass


def test_options_that_hide_the_device(model: str):
    class Options(ort.SessionOptions):
        """As one is that names devices of a plug-in."""

        def has_providers(self) -> bool:
            return True

    said: list[str] = []
    asked = Asked(model=model, options=Options())
    with Opener(Wanted(budget="80%"), said.append).opening(asked) as made:
        assert made == asked
    (line,) = said
    assert "give --device" in line


def test_sessions_of_two_openers_are_made_one_after_another(model: str):
    """ONNX Runtime has one allocator for them all: each would get that of the other."""
    asked, made = Asked(model=model), threading.Event()

    def make() -> None:
        with Opener(Wanted(), print).opening(asked):
            made.set()

    with Opener(Wanted(), print).opening(asked):
        other = threading.Thread(target=make)
        other.start()
        assert not made.wait(0.2)
    other.join()
    assert made.is_set()

"""Temporary files: removed by their maker, or once it is gone by the next; never by another."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from planner.errors import UsageError
from planner.files.temporary import NAME, clear, temporary_file, temporary_folder

_HOLDS = """
import sys, time
from pathlib import Path
from planner.files.temporary import temporary_file, temporary_folder
parent = Path(sys.argv[1])
with temporary_folder(parent) as folder, temporary_file(parent):
    (folder / "half").write_text("half")
    print("holding", flush=True)
    time.sleep(60)
"""


def holder(parent: Path) -> subprocess.Popen[str]:
    """A process that holds a temporary folder and a file in `parent`."""
    process = subprocess.Popen(
        [sys.executable, "-c", _HOLDS, str(parent)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "holding\n"
    return process


def test_what_a_killed_process_left_is_removed_by_the_next(tmp_path):
    process = holder(tmp_path)
    assert len(list(tmp_path.iterdir())) == 2
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert len(list(tmp_path.iterdir())) == 2
    with temporary_file(tmp_path) as mine:
        assert list(tmp_path.iterdir()) == [mine]
    assert not list(tmp_path.iterdir())


def test_what_a_living_process_holds_stays(tmp_path):
    process = holder(tmp_path)
    try:
        before = sorted(tmp_path.iterdir())
        clear(tmp_path)
        with temporary_folder(tmp_path), temporary_file(tmp_path):
            clear(tmp_path)
            assert set(before) < set(tmp_path.iterdir())
        assert sorted(tmp_path.iterdir()) == before
    finally:
        process.kill()
        process.wait()


def test_what_others_put_there_stays(tmp_path):
    names = ["planner-notes", ".planner-tmp-abc", "planner-tmp-0123456789abcdefg"]
    for name in names:
        (tmp_path / name).write_text("mine")
    away = tmp_path / "away"
    away.mkdir()
    (away / "precious").write_text("mine")
    link = tmp_path / "planner-tmp-0123456789abcdef"
    link.symlink_to(away)
    fifo = tmp_path / ".planner-tmp-0123456789abcdee"
    os.mkfifo(fifo)
    clear(tmp_path)
    assert all((tmp_path / name).read_text() == "mine" for name in names)
    assert link.is_symlink()
    assert (away / "precious").read_text() == "mine"


def test_an_abandoned_folder_goes_with_what_is_in_it_but_not_what_it_links_to(tmp_path):
    (tmp_path / "precious").write_text("mine")
    left = tmp_path / "planner-tmp-00000000deadbeef"
    left.mkdir()
    (left / "profile.json").write_text("{}")
    (left / "link").symlink_to(tmp_path / "precious")
    clear(tmp_path)
    assert os.listdir(tmp_path) == ["precious"]


def test_a_renamed_file_is_not_removed(tmp_path):
    with temporary_file(tmp_path) as path:
        assert NAME.fullmatch(path.name)
        path.write_text("done")
        path.rename(tmp_path / "output")
        path.write_text("somebody else's")
    assert (tmp_path / "output").read_text() == "done"
    assert path.read_text() == "somebody else's"


def test_no_temporary_folder_is_an_error_that_says_what_to_set(tmp_path):
    with (
        pytest.raises(UsageError, match=r"no temporary folder can be made .*TMPDIR"),
        temporary_folder(tmp_path / "missing"),
    ):
        pass

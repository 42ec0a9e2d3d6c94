"""A process of the tests that dies costs the test that it was at, and no other."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

_CONFTEST = """
from tests.scheduling import ByFile

def pytest_xdist_make_scheduler(config, log):
    return ByFile(config, log)
"""
_PASSES = "import time\n\n" + "".join(
    f"def test_{i}():\n    time.sleep(0.01)\n\n" for i in range(3)
)
_PYTEST = (sys.executable, "-m", "pytest", "-q", "-p", "xdist", "-n", "2", "--dist", "loadfile")
_DIES = "import os\n\ndef test_that_dies():\n    os._exit(1)\n\n"


@pytest.mark.parametrize(
    "files",
    [
        [_DIES],
        [_PASSES] * 4 + [_DIES + _PASSES],
        [_DIES] * 3 + [_PASSES + _DIES],
    ],
    ids=["alone", "after what is done", "again and again"],
)
def test_every_test_ends_once(files: list[str], tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(_CONFTEST)
    for number, content in enumerate(files):
        (tmp_path / f"test_{number}.py").write_text(content)
    top = Path(__file__).parents[1]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
    done = subprocess.run(
        [*_PYTEST, f"--rootdir={tmp_path}"],
        cwd=tmp_path,
        env={**environment, "PYTHONPATH": str(top), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    dead = sum("test_that_dies" in content for content in files)
    passed = sum(content.count("def test_") for content in files) - dead
    assert done.stdout.count("\nFAILED ") == dead, done.stdout
    last = done.stdout.splitlines()[-1]
    assert f"{dead} failed" in last
    assert not passed or f"{passed} passed" in last

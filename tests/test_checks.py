"""What a change must pass besides the tests, as tests: style, types, and who may import whom."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.test_docs import examples

ROOT = Path(__file__).parents[1]

CHECKS = {
    "style": ("-m", "ruff", "check", "."),
    "format": ("-m", "ruff", "format", "--check", "."),
    "imports": ("-c", "from importlinter.cli import lint_imports_command as run; run()"),
}
"""Arguments for Python, by what is looked at; settings are in pyproject.toml."""


@pytest.mark.parametrize("check", CHECKS)
def test_the_tree_passes(check: str) -> None:
    done = subprocess.run(
        [sys.executable, *CHECKS[check]], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]


def test_types_are_right_in_the_package_and_in_the_examples_of_the_documents(
    tmp_path: Path,
) -> None:
    """By one process: what both import is read once."""
    pytest.importorskip("torch")
    found = dict(examples())
    assert len(found) >= 8
    for name, code in found.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(code, encoding="utf-8")
    package = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pyright"]["include"]
    # what is named on the command line takes the place of `include`, and of nothing else there
    command = [sys.executable, "-m", "pyright", "--pythonpath", sys.executable, *package, tmp_path]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:]

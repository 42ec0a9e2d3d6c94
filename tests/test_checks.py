"""What a change must pass besides the tests, as tests: style, types, and who may import whom."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

CHECKS = {
    "style": ("-m", "ruff", "check", "."),
    "format": ("-m", "ruff", "format", "--check", "."),
    "types": ("-m", "pyright", "--pythonpath", sys.executable),
    "imports": ("-c", "from importlinter.cli import lint_imports_command as run; run()"),
}
"""Arguments for Python, by what is looked at; settings are in pyproject.toml."""


@pytest.mark.parametrize("check", CHECKS)
def test_the_tree_passes(check: str) -> None:
    done = subprocess.run(
        [sys.executable, *CHECKS[check]], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]

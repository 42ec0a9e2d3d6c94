"""The environment of onnxruntime-training, made on first use and kept in the checkout."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
ENVIRONMENT = ROOT / ".venv-training"
Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="session")
def training_run(training_python: Path) -> Run:
    """Run the training environment's Python in the checkout, with one thread."""

    def run(*arguments: str | Path, timeout_s: float = 300.0, check: bool = True):
        command = [str(training_python), *map(str, arguments)]
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            command,
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        assert not check or done.returncode == 0, done.stderr[-3000:]
        return done

    return run


@pytest.fixture(scope="session")
def kernel_facts(training_run: Run) -> list[dict[str, Any]]:
    """What `tests.training.kernels` measured."""
    found = training_run("-m", "tests.training.kernels", timeout_s=600)
    return json.loads(found.stdout.splitlines()[-1])


@pytest.fixture(scope="session")
def artifacts(training_run: Run, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A function from a net's name to the folder with its artifacts."""
    folder = tmp_path_factory.mktemp("artifacts")

    def made(name: str) -> Path:
        target = folder / name
        if not target.exists():
            training_run("-m", "models.artifacts", name, target)
        return target

    return made


@pytest.fixture(scope="session")
def training_python() -> Path:
    """Python of the environment; skips where it cannot be made."""
    python = ENVIRONMENT / "bin" / "python"
    wanted = _requirements()
    mark = ENVIRONMENT / "installed.sha256"
    digest = hashlib.sha256("\n".join(wanted).encode()).hexdigest()
    if mark.is_file() and mark.read_text() == digest:
        return python
    base = _python_311()
    if base is None:
        pytest.skip("onnxruntime-training 1.19.2 needs Python 3.11, and there is none here")
    shutil.rmtree(ENVIRONMENT, ignore_errors=True)
    subprocess.run(
        [base, "-m", "venv", "--without-pip", str(ENVIRONMENT)], check=True, capture_output=True
    )
    # most of what is installed is never imported: what is, is compiled then
    pip = [sys.executable, "-m", "pip", "--python", str(python)]
    install = [*pip, "install", "--quiet", "--no-compile", *wanted]
    done = subprocess.run(install, capture_output=True, text=True, check=False, timeout=1200)
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        pytest.skip(f"onnxruntime-training could not be installed: {reason}")
    mark.write_text(digest)
    return python


def _requirements() -> list[str]:
    """What the package and its extra `training` ask for."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return [*project["dependencies"], *project["optional-dependencies"]["training"]]


def _python_311() -> str | None:
    if sys.version_info[:2] == (3, 11):
        return sys.executable
    return shutil.which("python3.11")

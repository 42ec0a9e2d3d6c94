"""The wheel: what is in it, and that it works where nothing of the repository is."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from planner.cli.surroundings import OPTIONAL
from planner.native.building import library_name, system_compiler, zig_compiler

ROOT = Path(__file__).parents[1]
SOURCES = ("LICENSE", "README.md", "pyproject.toml", "setup.py", "planner")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
NO_CODE = {".cpp", ".h", ".inc", ".toml", ".json", ".md", ".j2", ".js", ".css", ".typed"}
"""Files of the package besides Python's, by their ending: each kind is needed by a command."""


def ran(*arguments: str | Path, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Python's output, run in a folder."""
    done = subprocess.run(
        [sys.executable, *map(str, arguments)],
        cwd=cwd,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def hasty(folder: Path) -> dict[str, str]:
    """The system's compiler without its optimizations: the library does the same, and is there sooner."""
    found = system_compiler()
    if found is None:
        return {}
    script = folder / "c++"
    script.write_text(f'#!/bin/sh\nexec {shlex.join(found.command)} "$@" -O0\n')
    script.chmod(0o755)
    return {"CXX": str(script)}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy with the setuptools that is here: nothing is fetched, and nothing left."""
    folder = tmp_path_factory.mktemp("wheel")
    for name in SOURCES:
        if (ROOT / name).is_dir():
            ignore = shutil.ignore_patterns("__pycache__", "*.so")
            shutil.copytree(ROOT / name, folder / "source" / name, ignore=ignore)
        else:
            (folder / "source").mkdir(exist_ok=True)
            shutil.copy(ROOT / name, folder / "source" / name)
    ran(
        *("-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--no-index"),
        *("--disable-pip-version-check", "-w", folder, folder / "source"),
        cwd=folder,
        **hasty(folder),
    )
    (built,) = folder.glob("*.whl")
    return built


def test_the_wheel_has_all_of_the_package_and_nothing_else(wheel: Path):
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        metadata = archive.read(next(n for n in names if n.endswith("/METADATA"))).decode()
        scripts = archive.read(next(n for n in names if n.endswith("entry_points.txt"))).decode()
    files = {p.relative_to(ROOT) for p in (ROOT / "planner").rglob("*") if p.is_file()}
    package = {p.as_posix() for p in files if "__pycache__" not in p.parts and p.suffix != ".so"}
    assert {Path(name).suffix or ".typed" for name in package} == NO_CODE | {".py"}
    about = {name for name in names if ".dist-info/" in name}
    native = f"planner/native/{library_name()}"
    assert names - about == package | ({native} if system_compiler() or zig_compiler() else set())
    assert any(name.endswith("licenses/LICENSE") for name in about)
    assert wheel.name.startswith("onnx_planner-") and "-py3-none-" in wheel.name
    assert not wheel.name.endswith("-any.whl")  # its library is of one platform
    assert "Name: onnx-planner\n" in metadata
    assert "planner = planner.cli.main:run" in scripts


def test_what_is_installed_elsewhere_works_there(wheel: Path, tmp_path: Path):
    target, work = tmp_path / "target", tmp_path / "work"
    work.mkdir()
    ran(
        *("-m", "pip", "install", "--no-deps", "--no-index", "--no-compile"),
        *("--disable-pip-version-check", "--target", target, wheel),
        cwd=work,
    )
    for file in ("mlp_adamw.onnx", "mlp_adamw.inputs.json"):
        shutil.copy(ROOT / "models" / "zoo" / file, work)
    code = "import planner, planner.native as n; print(planner.__file__, n.is_built(), sep='\\n')"
    where, built = ran("-c", code, cwd=work, PYTHONPATH=str(target)).stdout.splitlines()
    assert Path(where).is_relative_to(target)
    assert built == str(bool(system_compiler() or zig_compiler()))
    said = ran("-m", "planner", "--help", cwd=work, PYTHONPATH=str(target)).stdout
    assert "Usage: planner" in said and "optimize" in said
    ran(
        *("-m", "planner", "optimize", "mlp_adamw.onnx", "--budget", "80%"),
        *("--time-limit", "2", "-v"),
        cwd=work,
        PYTHONPATH=str(target),
    )
    left = {p.name for p in work.iterdir()}
    assert {f"mlp_adamw.{kind}" for kind in ("planned.onnx", "plan.json", "report.html")} <= left


def test_what_to_install_is_an_extra_of_this_package():
    for *_, install in OPTIONAL:
        name, _, extra = install.partition("[")
        assert name == PROJECT["name"] and extra.rstrip("]") in PROJECT["optional-dependencies"]


def test_no_other_package_is_recommended():
    """Another distribution has the name of the import package: it must not be what people install."""
    files = [p for folder in ("planner", "docs", "models") for p in (ROOT / folder).rglob("*.*")]
    for path in [*files, ROOT / "README.md", ROOT / "CONTRIBUTING.md"]:
        if path.suffix in (".py", ".md"):
            text = path.read_text(encoding="utf-8").replace("onnx-planner[", "")
            assert "planner[" not in text, path


def test_the_documents_and_the_tests_want_the_same_of_sphinx():
    extras = PROJECT["optional-dependencies"]
    assert set(extras["docs"]) <= set(extras["test"])

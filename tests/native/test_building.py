"""Where the library is, how it is built, and what is said where it is not."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from planner import native
from planner.errors import UsageError
from planner.native import building
from planner.native.building import SOURCES, BuildError, build, library_name


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    """A copy of the sources, with nothing built."""
    made = tmp_path / "sources"
    shutil.copytree(SOURCES, made, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    return made


def test_its_name_changes_with_any_source(sources: Path):
    assert library_name(sources) == library_name()
    for path in (sources / "pool" / "pool.h", sources / "swap" / "swaps.cpp"):
        before = library_name(sources)
        path.write_text(path.read_text() + "\n")
        assert library_name(sources) != before


def test_a_missing_or_old_library_is_an_error_that_says_what_to_do(
    sources: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(native, "SOURCES", sources)
    assert not native.is_built()
    with pytest.raises(UsageError, match=r"is not built: run `python -m planner\.native`.*ziglang"):
        native.library_path()
    (sources / "libplanner_native.0123456789ab.so").touch()
    assert not native.is_built()
    with pytest.raises(UsageError, match="was built from other sources"):
        native.library_path()


def test_without_a_compiler_the_error_names_those_that_were_looked_for(
    sources: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(sources))
    monkeypatch.setattr(building, "zig_compiler", lambda: None)
    with pytest.raises(BuildError, match=r"neither c\+\+, g\+\+ nor clang\+\+, nor .* -m ziglang"):
        build(sources, sources)


def test_a_compiler_that_fails_is_quoted_and_leaves_nothing(
    sources: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(building, "zig_compiler", lambda: None)
    monkeypatch.setenv("CXX", "no-such-compiler --flag")
    with pytest.raises(BuildError, match=r"no-such-compiler --flag: .*No such file"):
        build(sources, sources)
    monkeypatch.delenv("CXX")
    if building.system_compiler() is None:
        pytest.skip("there is no C++ compiler that could fail")
    (sources / "pool" / "pool.h").write_text("#error this is the compiler's own word\n")
    with pytest.raises(BuildError, match="this is the compiler's own word"):
        build(sources, sources)
    assert not [p.name for p in sources.iterdir() if p.suffix == ".so"]

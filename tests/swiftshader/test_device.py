"""The software device, run for real: its bytes, its cap, and what is said where a piece lacks."""

from __future__ import annotations

import json
import os
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from planner.errors import PlannerError, UsageError
from planner.files.keeping import cache_folder
from planner.targets.webgpu import WEBGPU
from tests.swiftshader import counting, exp_worker
from tests.swiftshader import device as software
from tests.swiftshader.counting import Counter, compiled_driver
from tests.swiftshader.device import SoftwareDevice, start

WORKER = (sys.executable, "-m", exp_worker.__name__)
MIB = 2**20
BELOW, ABOVE = 8 * MIB - 1, 8 * MIB
"""Caps about what Exp of 4 MiB needs: its input and its output."""

look = software.find_device.__wrapped__


def worker(device: SoftwareDevice, *arguments: object) -> dict[str, Any]:
    """What `exp_worker.py` printed."""
    done = start([*WORKER, *map(str, arguments)], device, timeout_s=60)
    assert not done.returncode, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def measured(counted_device: SoftwareDevice) -> dict[str, Any]:
    """One worker, with a cap below and one above."""
    return worker(counted_device, BELOW, ABOVE)


def test_model_runs_on_the_device(measured: dict[str, Any]) -> None:
    assert WEBGPU.provider in measured["providers"]
    assert measured["mean"] == pytest.approx(2.7182818)


def test_tensors_are_counted_as_storage(measured: dict[str, Any]) -> None:
    assert measured["start"]["storage_now"] == 0
    assert measured["first"]["storage_now"] == measured["second"]["storage_now"] == 8 * MIB
    assert measured["first"]["devices"] == 1


def test_staging_and_uniforms_are_counted_apart(measured: dict[str, Any]) -> None:
    first = measured["first"]
    assert first["other_now"] >= 4 * MIB
    assert first["memory_now"] >= first["storage_now"] + first["other_now"]


def test_nothing_is_held_when_the_session_is_gone(measured: dict[str, Any]) -> None:
    now = ("memory_now", "storage_now", "other_now")
    assert [measured["gone"][name] for name in now] == [0, 0, 0]
    assert measured["gone"]["storage_peak"] == 8 * MIB
    assert measured["reset"]["storage_peak"] == measured["reset"]["memory_peak"] == 0


def test_cap_refuses_one_byte_too_many(measured: dict[str, Any]) -> None:
    assert "[Invalid Buffer (unlabeled)] is invalid" in measured["caps"][str(BELOW)]
    assert measured["caps"][str(ABOVE)] == ""
    assert measured["end"]["refused"] > 0
    assert measured["end"]["storage_peak"] == 8 * MIB


def test_counter_and_vulkan_loader_share_one_copy(measured: dict[str, Any]) -> None:
    assert len(measured["drivers"]) == 1


def test_user_namespace_does_as_well_as_root(
    counted_device: SoftwareDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1)  # not root, whoever runs this
    try:
        prefix = software._namespace()
    except UsageError as error:
        pytest.skip(str(error))
    assert "-r" in prefix
    assert WEBGPU.provider in worker(replace(counted_device, prefix=prefix))["providers"]


@pytest.mark.parametrize("compiler", [None, "#!/bin/sh\necho broken >&2\nexit 1\n"])
def test_device_works_uncounted_where_the_driver_is_not_built(
    webgpu_device: SoftwareDevice,
    compiler: str | None,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    commands(tmp_path / "bin", "unshare", "sh", "mount", "mkdir", "ln", "true")
    if compiler:
        (tmp_path / "bin/cc").write_text(compiler)
        (tmp_path / "bin/cc").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    device = look()
    expected = "did not build the counting driver: broken" if compiler else "no C compiler (cc)"
    assert expected in device.why_not_counted
    assert "counted device" in start(WORKER, device).stderr


def test_many_may_compile_at_once(
    counted_device: SoftwareDevice, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with ThreadPoolExecutor(4) as pool:
        paths = {pool.submit(compiled_driver) for _ in range(4)}
    (path,) = {done.result() for done in paths}
    assert list(cache_folder().iterdir()) == [path]
    assert cache_folder().stat().st_mode & 0o777 == 0o700


class TestMissing:
    """Each missing piece is one line, which says what to do."""

    @pytest.fixture(autouse=True)
    def empty_pieces(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        for name in (software.SWIFTSHADER, software.LOADER):
            (tmp_path / name).touch()
        monkeypatch.setenv("PLANNER_SWIFTSHADER", str(tmp_path / software.SWIFTSHADER))
        monkeypatch.setattr(software, "PLUGIN", "json")  # any package that is installed

    def said(self) -> str:
        with pytest.raises(UsageError) as caught:
            look()
        assert "\n" not in str(caught.value)
        return str(caught.value)

    def unshare(self, monkeypatch: pytest.MonkeyPatch, folder: Path, script: str) -> None:
        """Put a command of that name first, which fails with what it prints."""
        (folder / "unshare").write_text(f"#!/bin/sh\nexec >&2\n{script}\nexit 1\n")
        (folder / "unshare").chmod(0o755)
        monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")

    def test_plugin(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(software, "PLUGIN", "no_such_plugin")
        assert 'pip install "onnx-planner[webgpu]"' in self.said()

    def test_swiftshader(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setattr(software, "FOLDERS", (str(tmp_path / "nowhere"),))
        monkeypatch.delenv("PLANNER_SWIFTSHADER")
        assert "apt-get install chromium" in self.said()
        monkeypatch.setenv("PLANNER_SWIFTSHADER", "/no/such/library.so")
        assert self.said() == "PLANNER_SWIFTSHADER names no file: /no/such/library.so"

    def test_vulkan_loader(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(software, "LOADER", "libno-such-vulkan.so.1")
        assert "apt-get install libvulkan1" in self.said()

    def test_unshare(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setenv("PATH", str(tmp_path))
        assert "apt-get install util-linux" in self.said()

    def test_mount_namespace(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        self.unshare(monkeypatch, tmp_path, "echo unshare: Operation not permitted")
        said = self.said()
        assert "takes root or user namespaces" in said
        assert said.endswith("unshare: Operation not permitted")

    def test_device_that_does_not_come_up(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        self.unshare(monkeypatch, tmp_path, 'case "$*" in *" true") exit 0; esac; echo no adapter')
        assert self.said() == "ONNX Runtime does not run on SwiftShader here: no adapter"

    def test_cache_that_others_may_write(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        self.unshare(monkeypatch, tmp_path, "exit 0")
        cache_folder().chmod(0o777)
        assert "not this user's alone" in self.said()


def test_counter_needs_a_counted_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(counting.DRIVER_VARIABLE, raising=False)
    with pytest.raises(PlannerError, match="no counted device"):
        Counter()


def commands(folder: Path, *names: str) -> None:
    """A folder for PATH with these commands alone."""
    folder.mkdir()
    for name in names:
        found = shutil.which(name)
        assert found is not None
        (folder / name).symlink_to(found)

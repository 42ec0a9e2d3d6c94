"""Measured times: kept under what they were measured of and on, and what a graph makes of them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from planner.cost.hardware import load_hardware
from planner.cost.measured import MeasuredTimes, keep_times, kept_times, times_key
from planner.files.keeping import cache_folder

TIMES = MeasuredTimes(
    kernel_us={"op": 20.0}, runs=3, copy_out_bytes_per_s=2e9, copy_in_bytes_per_s=1e9, pin_us=4.0
)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def test_times_are_kept_under_their_key() -> None:
    key = times_key({"model": "a"})
    assert kept_times(key) is None
    assert keep_times(key, TIMES) is not None
    assert kept_times(key) == TIMES
    assert kept_times(times_key({"model": "b"})) is None


def test_newer_times_take_the_place_of_older_ones() -> None:
    key = times_key({"model": "a"})
    keep_times(key, TIMES)
    newer = MeasuredTimes(kernel_us={"op": 10.0}, runs=5)
    keep_times(key, newer)
    assert kept_times(key) == newer


@pytest.mark.parametrize("content", [b"", b"[]", b'{"kernel_us": 1}', b'{"runs": 1}', b"\xff"])
def test_a_file_that_is_none_is_no_times(content: bytes) -> None:
    key = times_key({"model": "a"})
    path = keep_times(key, TIMES)
    assert path is not None
    path.write_bytes(content)
    assert kept_times(key) is None


def test_the_oldest_files_go() -> None:
    first = keep_times(times_key({"model": 0}), TIMES)
    assert first is not None
    os.utime(first, (1, 1))
    for index in range(1, 201):
        keep_times(times_key({"model": index}), TIMES)
    assert not first.exists()
    assert len(list(cache_folder().glob("times-*.json"))) == 200


def test_without_a_folder_nothing_is_kept_and_nothing_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "file"
    file.touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(file))
    key = times_key({"model": "a"})
    assert keep_times(key, TIMES) is None
    assert kept_times(key) is None


def test_copies_are_as_fast_as_they_were_measured() -> None:
    profile = load_hardware("cpu")
    measured = TIMES.hardware(profile)
    assert measured.copy_to_host_bytes_per_s == 2e9
    assert measured.copy_from_host_bytes_per_s == 1e9
    assert MeasuredTimes(kernel_us={}, runs=1).hardware(profile) is profile

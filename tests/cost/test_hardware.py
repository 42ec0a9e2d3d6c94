"""Hardware profiles: complete, sourced, and refused with a name when they are not."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

import pytest

from planner.cost.hardware import hardware_names, load_hardware
from planner.errors import UsageError

BUNDLED = {"cpu", "t4", "v100", "rtx-4090", "a100-40gb", "a100-80gb", "h100", "h200"}


def test_the_bundled_profiles_are_these() -> None:
    assert set(hardware_names()) == BUNDLED


@pytest.mark.parametrize("name", sorted(BUNDLED))
def test_a_bundled_profile_is_complete_and_says_where_it_is_from(name: str) -> None:
    hardware = load_hardware(name)
    assert hardware.name == name
    assert hardware.sources or hardware.assumptions
    assert 0 < hardware.compute_efficiency <= 1
    assert 0 < hardware.memory_efficiency <= 1
    matrix, vector = hardware.matrix_flops_per_s, hardware.vector_flops_per_s
    assert set(matrix) == set(vector) == {"fp64", "fp32", "fp16", "bf16"}
    assert all(matrix[d] >= vector[d] or d == "bf16" or d == "fp16" for d in matrix)
    # no device copies to its host faster than it reads its own memory
    assert hardware.copy_to_host_bytes_per_s < hardware.memory_bytes_per_s
    assert any("datasheet" in s.lower() or "whitepaper" in s for s in hardware.sources) or (
        name == "cpu"
    )


def test_an_unknown_name_is_answered_with_the_known_ones() -> None:
    with pytest.raises(
        UsageError, match=r"unknown hardware 'abacus'; bundled: a100-40gb, a100-80gb"
    ):
        load_hardware("abacus")
    with pytest.raises(UsageError, match=r"unknown hardware 'h10'; the closest is 'h100'; bundled"):
        load_hardware("h10")


def _edited(tmp_path: Path, old: str, new: str) -> Path:
    source = resources.files("planner.cost") / "profiles" / "cpu.toml"
    text = source.read_text()
    assert old in text
    path = tmp_path / "mine.toml"
    path.write_text(text.replace(old, new))
    return path


def test_a_file_of_ones_own_is_read(tmp_path: Path) -> None:
    path = _edited(tmp_path, "op_overhead_us = 5", "op_overhead_us = 0")
    assert load_hardware(path).op_overhead_us == 0


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (
            "op_overhead_us = 5",
            "op_overhead_us = -1",
            "op_overhead_us must be a number from 0 to 1e.09, not -1",
        ),
        ("op_overhead_us = 5", "overhead = 5", "unknown key 'overhead'"),
        (
            "memory_efficiency = 0.7",
            "memory_efficiency = 7",
            "must be a number from 1e-06 to 1, not 7",
        ),
        ("fp32 = 5e11", "fp31 = 5e11", "must give fp32"),
        ("name = ", "name : ", "is not TOML"),
    ],
)
def test_a_wrong_file_is_refused_with_the_key(
    tmp_path: Path, old: str, new: str, said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        load_hardware(_edited(tmp_path, old, new))


def test_a_missing_file_is_refused() -> None:
    with pytest.raises(UsageError, match="no such hardware profile file"):
        load_hardware("nowhere.toml")

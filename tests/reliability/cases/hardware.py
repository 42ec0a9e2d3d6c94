"""Hardware profiles in TOML."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from tests.reliability.case import OK, USAGE, Case
from tests.reliability.kit import kit, take

_ANALYZE = ("analyze", "model.onnx", "--hardware", "hardware.toml", "--time-limit", "2", "-q")


def cases() -> list[Case]:
    """Figures that are none or make no sense, and files that are not TOML."""
    found = [
        Case(
            room="hardware",
            wrong=wrong,
            arguments=_ANALYZE,
            build=partial(_replace, old, new),
            exits=(USAGE,),
            words=("hardware.toml",),
        )
        for wrong, old, new in _edited()
    ]
    found += [
        Case(
            room="hardware",
            wrong=wrong,
            arguments=_ANALYZE,
            build=partial(_write, data),
            exits=(USAGE,),
            words=("hardware.toml",),
        )
        for wrong, data in {
            "the file is empty": b"",
            "the file is JSON": b'{"name": "cpu"}',
            "the file is not UTF-8": b'name = "\xff"',
            "the file is nested 100,000 deep": b"a = " + b"[" * 100_000,
            "a number of 5,000 digits": b"memory_bytes = " + b"9" * 5000,
            "a key twice": b'name = "a"\nname = "b"\n',
        }.items()
    ]
    found += [
        Case(
            room="hardware",
            wrong=f"the hardware is {name!r}",
            arguments=("analyze", "model.onnx", "--hardware", name),
            build=partial(_write, b""),
            exits=(USAGE,),
        )
        for name in ("", "abacus", "gone.toml", ".", "../cpu", "h" * 5000, "h" * 300 + ".toml")
    ]
    found += [
        Case(
            room="hardware",
            wrong=wrong,
            arguments=_ANALYZE,
            build=partial(_replace, old, new),
            exits=(OK,),
        )
        for wrong, old, new in (
            (
                "operations without overhead, which is legal",
                "op_overhead_us = 5",
                "op_overhead_us = 0",
            ),
            (
                "memory of 1 byte per second, which is legal",
                "memory_bytes_per_s = 4e10",
                "memory_bytes_per_s = 1",
            ),
            (
                "copies of 1 byte per second, which is legal",
                "copy_to_host_bytes_per_s = 1e10",
                "copy_to_host_bytes_per_s = 1",
            ),
            ("memory of 2^62 bytes, which is legal", "= 34_359_738_368", f"= {1 << 62}"),
        )
    ]
    return found


def _write(data: bytes, folder: Path) -> None:
    take("model.onnx", into=folder)
    (folder / "hardware.toml").write_bytes(data)


def _replace(old: str, new: str, folder: Path) -> None:
    text = (kit() / "hardware.toml").read_text()
    assert old in text
    _write(text.replace(old, new, 1).encode(), folder)


def _edited() -> Iterator[tuple[str, str, str]]:
    for key, old in (
        ("memory_bytes", "memory_bytes = 34_359_738_368"),
        ("memory_bytes_per_s", "memory_bytes_per_s = 4e10"),
        ("compute_efficiency", "compute_efficiency = 0.6"),
        ("op_overhead_us", "op_overhead_us = 5"),
    ):
        for value in ("nan", "inf", "-inf", "-1", '"5"', "true", "[1]", "1e308"):
            yield f"{key} = {value}", old, f"{key} = {value}"
    for key in ("memory_bytes_per_s = 4e10", "copy_to_host_bytes_per_s = 1e10"):
        name = key.split(" ")[0]
        yield f"{name} = 1e-300", key, f"{name} = 1e-300"
        yield f"{name} = 0", key, f"{name} = 0"
    yield "compute_efficiency is missing", "compute_efficiency = 0.6", ""
    yield "an unknown key", "op_overhead_us = 5", "op_overhead_us = 5\ncolour = 1"
    yield "sources is a number", "sources = [\n]", "sources = 3"
    yield "assumptions hold a number", "assumptions = [", "assumptions = [ 1,"
    yield "a rate is NaN", "fp32 = 5e11", "fp32 = nan"
    yield "a rate is 0", "fp32 = 5e11", "fp32 = 0"
    yield "a rate of an unknown type", "fp32 = 5e11", "fp32 = 5e11\nfp4 = 1e12"
    yield "rates without fp32", "fp32 = 5e11\n", ""
    yield "rates are a number", "[matrix_flops_per_s]", "matrix_flops_per_s = 3\n[other]"

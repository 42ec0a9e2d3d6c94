"""Hardware profiles: a device's compute rates, bandwidths and memory, with their sources.

The bundled profiles are `profiles/*.toml`. Each figure comes from a data sheet (`sources` has its
title and year) or is an assumption (named in `assumptions`: the fraction of the peak that kernels
reach, launch overhead, the host link's usable bandwidth). A user's own file has the same keys.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Any

from planner.errors import UsageError
from planner.files.reading import MAX_BYTES, closest, read_text, shown

DTYPES = ("fp64", "fp32", "fp16", "bf16")
_RATE = (1.0, 1e24)
_NUMBERS = {
    "memory_bytes": (1, MAX_BYTES),
    "memory_bytes_per_s": _RATE,
    "copy_to_host_bytes_per_s": _RATE,
    "copy_from_host_bytes_per_s": _RATE,
    "op_overhead_us": (0, 1e9),
    "compute_efficiency": (1e-6, 1),
    "memory_efficiency": (1e-6, 1),
}
"""Least and largest sensible value of each figure of a profile."""

_PAGEABLE = "pageable_bytes_per_s"


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """One device.

    Attributes:
        name: of the profile; title: of the device.
        matrix_flops_per_s: peak of matrix products and convolutions, by "fp64", "fp32", "fp16",
            "bf16" (with tensor cores if the device has them for that type).
        vector_flops_per_s: peak of everything else.
        memory_bytes: capacity; memory_bytes_per_s: peak bandwidth of the device's memory.
        copy_to_host_bytes_per_s, copy_from_host_bytes_per_s: usable bandwidth of one copy.
        pageable_bytes_per_s: bandwidth of a copy, either way, between the device and host memory
            that is not page-locked, like a caller's NumPy arrays; 0 for as fast as other copies.
        is_host: its memory is the host's: kernels read a caller's inputs in place. A profile says
            so with `is_host = true`.
        op_overhead_us: time of an operation that does nothing.
        compute_efficiency, memory_efficiency: fraction of the peaks that kernels reach.
        sources, assumptions: one line each.
    """

    name: str
    title: str
    matrix_flops_per_s: Mapping[str, float]
    vector_flops_per_s: Mapping[str, float]
    memory_bytes: int
    memory_bytes_per_s: float
    copy_to_host_bytes_per_s: float
    copy_from_host_bytes_per_s: float
    op_overhead_us: float
    compute_efficiency: float
    memory_efficiency: float
    sources: tuple[str, ...]
    assumptions: tuple[str, ...]
    is_host: bool = False
    pageable_bytes_per_s: float = 0.0

    def paged(self) -> Hardware:
        """Return the profile with `pageable_bytes_per_s` as the bandwidth of all copies."""
        rate = self.pageable_bytes_per_s
        if not rate:
            return self
        return replace(self, copy_to_host_bytes_per_s=rate, copy_from_host_bytes_per_s=rate)


def hardware_names() -> tuple[str, ...]:
    """Return the names of the bundled profiles."""
    folder = resources.files("planner.cost") / "profiles"
    return tuple(sorted(f.name.removesuffix(".toml") for f in folder.iterdir() if _is_toml(f.name)))


def load_hardware(name_or_path: str | Path) -> Hardware:
    """Load a bundled profile by name, or a `.toml` file by path.

    Raises:
        UsageError: no such profile or file, or a file with a key missing, unknown or out of range.
    """
    text = str(name_or_path)
    if _is_toml(text):
        path = Path(text)
        if not os.path.exists(path):
            raise UsageError(f"no such hardware profile file: {path}")
        text = read_text(path, what="a hardware profile", error=UsageError)
        return _parse(text, path.stem, str(path))
    known = hardware_names()
    if text not in known:
        near = closest(text, known, "is", most=1, cutoff=0.6)
        raise UsageError(
            f"unknown hardware {text!r}{near}; bundled: {', '.join(known)}; or give a .toml file"
        )
    source = resources.files("planner.cost") / "profiles" / f"{text}.toml"
    return _parse(source.read_text(), text, f"profile {text}")


def _is_toml(name: str) -> bool:
    return name.endswith(".toml")


def _parse(text: str, name: str, where: str) -> Hardware:
    try:
        table = tomllib.loads(text)
    except RecursionError:
        raise UsageError(f"{where} is not TOML: it is nested too deep") from None
    except ValueError as error:
        raise UsageError(f"{where} is not TOML: {error}") from None
    known = {"name", "title", "matrix_flops_per_s", "vector_flops_per_s", "sources", "assumptions"}
    known |= {"is_host", _PAGEABLE}
    for key in table:
        if key not in known and key not in _NUMBERS:
            raise UsageError(f"{where}: unknown key {key!r}")
    values: dict[str, Any] = {
        key: float(_figure(table, key, where, limits)) for key, limits in _NUMBERS.items()
    }
    values["memory_bytes"] = int(table["memory_bytes"])
    return Hardware(
        name=str(table.get("name", name)),
        title=str(table.get("title", table.get("name", name))),
        matrix_flops_per_s=_rates(table, "matrix_flops_per_s", where),
        vector_flops_per_s=_rates(table, "vector_flops_per_s", where),
        **values,
        sources=_texts(table, "sources", where),
        assumptions=_texts(table, "assumptions", where),
        is_host=_flag(table, "is_host", where),
        pageable_bytes_per_s=float(
            _figure(table, _PAGEABLE, where, _RATE) if _PAGEABLE in table else 0
        ),
    )


def _figure(
    table: Mapping[str, Any], key: str, where: str, limits: tuple[float, float]
) -> int | float:
    """Check and return a figure; whole numbers stay whole."""
    value: Any = table.get(key)
    least, most = limits
    if type(value) not in (int, float) or not least <= value <= most:
        raise UsageError(
            f"{where}: {key} must be a number from {least:g} to {most:g}, not {shown(value)}"
        )
    return value


def _flag(table: Mapping[str, Any], key: str, where: str) -> bool:
    value: Any = table.get(key, False)
    if type(value) is not bool:
        raise UsageError(f"{where}: {key} must be true or false, not {shown(value)}")
    return value


def _texts(table: Mapping[str, Any], key: str, where: str) -> tuple[str, ...]:
    texts = table.get(key, [])
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise UsageError(f"{where}: {key} must be a list of texts, not {shown(texts)}")
    return tuple(texts)


def _rates(table: Mapping[str, Any], key: str, where: str) -> dict[str, float]:
    rates = table.get(key)
    if not isinstance(rates, dict) or "fp32" not in rates:
        raise UsageError(f"{where}: [{key}] must give fp32, and may give {', '.join(DTYPES)}")
    for dtype in rates:
        if dtype not in DTYPES:
            raise UsageError(f"{where}: [{key}] has the unknown type {dtype!r}")
    return {dtype: float(_figure(rates, dtype, f"{where}: [{key}]", _RATE)) for dtype in rates}

"""Hardware profiles: what a device computes, moves and holds per second, and who says so.

The bundled profiles are `profiles/*.toml`. A figure is either a data sheet's (its title and year
stand in `sources`) or an assumption (named in `assumptions`: what fraction of the peak kernels
reach, launch overhead, the host link's usable bandwidth). A user's own file has the same keys.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from planner.errors import UsageError

DTYPES = ("fp64", "fp32", "fp16", "bf16")
_NUMBERS = (
    "memory_bytes",
    "memory_bytes_per_s",
    "copy_to_host_bytes_per_s",
    "copy_from_host_bytes_per_s",
    "op_overhead_us",
    "compute_efficiency",
    "memory_efficiency",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """One device.

    Attributes:
        name: of the profile; title: of the device.
        matrix_flops_per_s: peak of matrix products and convolutions, by "fp64", "fp32", "fp16",
            "bf16" (tensor cores where the device has them for that type).
        vector_flops_per_s: peak of everything else.
        memory_bytes: capacity; memory_bytes_per_s: peak bandwidth of the device's memory.
        copy_to_host_bytes_per_s, copy_from_host_bytes_per_s: usable bandwidth of one copy.
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


def hardware_names() -> tuple[str, ...]:
    """Names of the bundled profiles."""
    folder = resources.files("planner.cost") / "profiles"
    return tuple(sorted(f.name.removesuffix(".toml") for f in folder.iterdir() if _is_toml(f.name)))


def load_hardware(name_or_path: str | Path) -> Hardware:
    """A bundled profile by name, or a `.toml` file by path.

    Raises:
        UsageError: no such profile or file, or a file with a key missing, unknown or not positive.
    """
    text = str(name_or_path)
    if _is_toml(text):
        path = Path(text)
        if not path.is_file():
            raise UsageError(f"no such hardware profile file: {path}")
        return _parse(path.read_text(), path.stem, str(path))
    known = hardware_names()
    if text not in known:
        raise UsageError(
            f"unknown hardware {text!r}; bundled: {', '.join(known)}; or give a .toml file"
        )
    source = resources.files("planner.cost") / "profiles" / f"{text}.toml"
    return _parse(source.read_text(), text, f"profile {text}")


def _is_toml(name: str) -> bool:
    return name.endswith(".toml")


def _parse(text: str, name: str, where: str) -> Hardware:
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{where} is not TOML: {error}") from error
    known = {"name", "title", "matrix_flops_per_s", "vector_flops_per_s", "sources", "assumptions"}
    for key in table:
        if key not in known and key not in _NUMBERS:
            raise UsageError(f"{where}: unknown key {key!r}")
    values = {key: _positive(table, key, where, zero=key == "op_overhead_us") for key in _NUMBERS}
    for key in ("compute_efficiency", "memory_efficiency"):
        if values[key] > 1:
            raise UsageError(f"{where}: {key} is a fraction of the peak, at most 1")
    return Hardware(
        name=str(table.get("name", name)),
        title=str(table.get("title", table.get("name", name))),
        matrix_flops_per_s=_rates(table, "matrix_flops_per_s", where),
        vector_flops_per_s=_rates(table, "vector_flops_per_s", where),
        memory_bytes=int(values["memory_bytes"]),
        memory_bytes_per_s=values["memory_bytes_per_s"],
        copy_to_host_bytes_per_s=values["copy_to_host_bytes_per_s"],
        copy_from_host_bytes_per_s=values["copy_from_host_bytes_per_s"],
        op_overhead_us=values["op_overhead_us"],
        compute_efficiency=values["compute_efficiency"],
        memory_efficiency=values["memory_efficiency"],
        sources=tuple(map(str, table.get("sources", ()))),
        assumptions=tuple(map(str, table.get("assumptions", ()))),
    )


def _positive(table: Mapping[str, Any], key: str, where: str, *, zero: bool = False) -> float:
    value = table.get(key)
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise UsageError(f"{where}: {key} must be a positive number, not {value!r}")
    if value < 0 or (value == 0 and not zero):
        raise UsageError(f"{where}: {key} must be a positive number, not {value!r}")
    return float(value)


def _rates(table: Mapping[str, Any], key: str, where: str) -> dict[str, float]:
    rates = table.get(key)
    if not isinstance(rates, dict) or "fp32" not in rates:
        raise UsageError(f"{where}: [{key}] must give fp32, and may give {', '.join(DTYPES)}")
    for dtype in rates:
        if dtype not in DTYPES:
            raise UsageError(f"{where}: [{key}] has the unknown type {dtype!r}")
    return {dtype: _positive(rates, dtype, f"{where}: [{key}]") for dtype in rates}

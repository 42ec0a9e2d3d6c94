"""The kernels of a provider of ONNX Runtime (`kernels.toml` of its target), and the rules to find one.

A kernel serves a node (onnxruntime/core/framework/kernel_registry.cc) where

    version  the operator's since-version is the kernel's first, or lies within its first and last;
             a kernel without a last version does not serve a later since-version
    types    for each type constraint, its first input or output that is present has an allowed type

and some of a kernel's inputs and outputs live in host memory though it runs on the device: shapes,
axes, sizes (`InputMemoryType(OrtMemTypeCPUInput, i)` in its registration).
"""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files

import onnx.defs
import onnx_ir as ir

from planner.targets import Target

_ONNX = frozenset({"", "ai.onnx"})
_NAMES = {"bool": "b8", "str": "s"}
"""onnx_ir's short names of types that the tables name otherwise."""

_ANY = "bf16,bool,f16,f32,f64,i8,i16,i32,i64,u8,u16,u32,u64"


@dataclass(frozen=True, slots=True, kw_only=True)
class Constraint:
    """A type constraint: the first value of `at` that is present must be of one of `types`.

    Attributes:
        at: (is an output, index) pairs.
    """

    at: tuple[tuple[bool, int], ...]
    types: frozenset[ir.DataType]


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """One row of the table; `last` is None where the registration names no last version."""

    first: int
    last: int | None
    constraints: tuple[Constraint, ...]

    def serves(self, since: int) -> bool:
        """Tell whether it serves an operator of this since-version."""
        return since == self.first or (self.last is not None and self.first <= since <= self.last)


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelTable:
    """All kernels of one provider, by (domain, operator)."""

    kernels: Mapping[tuple[str, str], tuple[Kernel, ...]]
    host_inputs: Mapping[tuple[str, str], tuple[int, ...]]
    host_outputs: Mapping[tuple[str, str], tuple[int, ...]]

    def serving(self, op_type: str, domain: str, opset: int) -> tuple[Kernel, ...]:
        """Return the kernels for this operator in this opset, whatever its types."""
        since = since_version(op_type, domain, opset)
        rows = self.kernels.get((_plain(domain), op_type), ())
        return tuple(kernel for kernel in rows if kernel.serves(since))


def since_version(op_type: str, domain: str, opset: int) -> int:
    """Return the opset in which the operator last changed, up to `opset`."""
    try:
        return onnx.defs.get_schema(op_type, opset, _plain(domain)).since_version
    except onnx.defs.SchemaError:
        return 1  # ONNX Runtime's own operators have one version


def kernel_table(target: Target) -> KernelTable:
    """Return the table of a target with a memory of its own."""
    return _read(target.package)


@functools.cache
def _read(package: str) -> KernelTable:
    """Read the table in a target's folder."""
    tables = tomllib.loads((files(package) / "kernels.toml").read_text(encoding="utf-8"))
    return KernelTable(
        kernels={
            (domain, op): tuple(_kernel(row) for row in rows)
            for domain, operators in tables["kernels"].items()
            for op, rows in operators.items()
        },
        host_inputs=_indices(tables["host_inputs"]),
        host_outputs=_indices(tables["host_outputs"]),
    )


def _plain(domain: str) -> str:
    return "" if domain in _ONNX else domain


def _indices(
    tables: Mapping[str, Mapping[str, Sequence[int]]],
) -> dict[tuple[str, str], tuple[int, ...]]:
    return {
        (domain, op): tuple(indices)
        for domain, operators in tables.items()
        for op, indices in operators.items()
    }


def _kernel(row: str) -> Kernel:
    versions, *constraints = row.split()
    first, _, last = versions.rstrip("+").partition("-")
    end = None if versions.endswith("+") else int(last or first)
    return Kernel(
        first=int(first), last=end, constraints=tuple(_constraint(text) for text in constraints)
    )


def _constraint(text: str) -> Constraint:
    at, _, types = text.partition(":")
    names = (_ANY if types == "any" else types).split(",")
    return Constraint(
        at=tuple((place[0] == "o", int(place[1:])) for place in at.split("|")),
        types=frozenset(ir.DataType.from_short_name(_NAMES.get(n, n)) for n in names),
    )

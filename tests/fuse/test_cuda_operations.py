"""Each operation of the kernels for CUDA, run on the CPU as in `tests/fuse/test_cuda.py`: the bits of its
definition, and those of the CPU's own.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

import numpy as np
import pytest
from scipy import special

from planner.fuse.operators import CASTS
from planner.native.building import SOURCES
from tests.fuse.fake_cuda import Case, Fakes
from tests.fuse.graphs import Array, pointwise, same_bits
from tests.fuse.test_operators import DTYPES, MOST_ULPS, assert_within_ulps, spread, values


def _largest(a: Array, b: Array) -> Array:
    return np.where(np.isnan(a) | np.isnan(b), a + b, np.where(a > b, a, b))


def _least(a: Array, b: Array) -> Array:
    return np.where(np.isnan(a) | np.isnan(b), a + b, np.where(a < b, a, b))


NUMBERS: Mapping[str, Callable[..., Array]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "maximum": _largest,
    "minimum": _least,
    "neg": np.negative,
    "abs": lambda a: np.where(a > 0, a, np.negative(a)),
    "relu": lambda a: _largest(a, np.zeros_like(a)),
}
"""What ONNX Runtime's kernels for CUDA do: a zero's sign is not the CPU's everywhere."""
FLOATS = {"div": np.divide, "sqrt": np.sqrt}
FUNCTIONS = {
    "exp": np.exp,
    "log": np.log,
    "tanh": np.tanh,
    "erf": special.erf,
    "sigmoid": lambda a: np.exp(np.minimum(a, 0)) / (1 + np.exp(-np.abs(a))),
    "pow": np.power,
}
COMPARED = {
    "equal": np.equal,
    "less": np.less,
    "less_equal": np.less_equal,
    "greater": np.greater,
    "greater_equal": np.greater_equal,
}
LOGIC = {"and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor, "not": np.logical_not}
TWO = {*COMPARED, *LOGIC, "add", "sub", "mul", "maximum", "minimum", "div", "pow"} - {"not"}


@pytest.mark.parametrize("dtype", DTYPES)
def test_operations_have_every_bit_of_their_definitions(fakes: Fakes, dtype: str):
    is_float, is_bool = dtype in ("float", "double"), dtype == "bool"
    known = {} if is_bool else {**NUMBERS, **(FLOATS if is_float else {})}
    known |= COMPARED | (LOGIC if is_bool else {})
    feeds = {"a": values(dtype, 1), "b": values(dtype, 2), "c": values("bool", 3)}
    if dtype in ("int32", "int64"):  # they wrap around
        edges = np.iinfo(DTYPES[dtype])
        feeds["a"][:4], feeds["b"][:4] = [edges.max, edges.min] * 2, [edges.max] * 2 + [-1] * 2
    lines = [f"a = input {dtype}", f"b = input {dtype}", "c = input bool", "t = where c a b"]
    lines += [f"t_{name} = {name} a{' b' if name in TWO else ''}" for name in known]
    outputs = ["t", *(f"t_{name}" for name in known)]
    found = fakes.one("\n".join([*lines, *(f"output {name}" for name in outputs)]), feeds)
    a, b = feeds["a"], feeds["b"]
    with np.errstate(all="ignore"):
        wanted = [np.where(feeds["c"], a, b)]
        wanted += [f(a, b) if name in TWO else f(a) for name, f in known.items()]
    for name, one, other in zip(outputs, found, wanted, strict=True):
        assert same_bits(one, np.asarray(other)), (name, one[one != other][:5])


@pytest.mark.parametrize("dtype", DTYPES)
def test_casts_have_every_bit(fakes: Fakes, dtype: str):
    x = values(dtype, 0)
    if dtype in ("float", "double"):  # a number that does not fit is the processor's own affair
        x = x[np.abs(x) < 2.0**31]
    lines = [f"x = input {dtype}", *(f"t{i} = cast {to} x" for i, to in CASTS.items())]
    found = fakes.one("\n".join([*lines, *(f"output t{i}" for i in CASTS)]), {"x": x})
    for one, to in zip(found, CASTS.values(), strict=True):
        assert same_bits(one, x.astype(DTYPES[to])), to


@pytest.mark.parametrize("dtype", ["float", "double"])
def test_functions_are_those_of_numpy(fakes: Fakes, dtype: str):
    feeds = {"a": values(dtype, 1), "b": values(dtype, 2)}
    least = -np.linspace(0, 110 if dtype == "float" else 760, 500)  # where a result becomes 0
    feeds["a"][:500] = least.astype(DTYPES[dtype])
    lines = [f"{name} = input {dtype}" for name in feeds]
    lines += [f"t{i} = {n} a{' b' if n in TWO else ''}" for i, n in enumerate(FUNCTIONS)]
    found = fakes.one("\n".join([*lines, *(f"output t{i}" for i in range(len(FUNCTIONS)))]), feeds)
    tiny = float(np.finfo(DTYPES[dtype]).smallest_subnormal)
    for (name, function), one in zip(FUNCTIONS.items(), found, strict=True):
        with np.errstate(all="ignore"):
            wide = [x.astype(np.float64) for x in feeds.values()]
            wanted = function(*wide) if name in TWO else function(wide[0])
            wanted = wanted.astype(DTYPES[dtype])
        near = 1e-6 if dtype == "float" else 1e-13
        np.testing.assert_allclose(one, wanted, rtol=near, atol=2 * tiny, err_msg=name)


def test_functions_are_within_the_ulps_of_the_cpus(fakes: Fakes):
    asked = {name: spread(name) for name in MOST_ULPS}
    cases: list[Case] = [
        (f"x = input float\nt = {name.lower()} x\noutput t", {"x": x}) for name, x in asked.items()
    ]
    for (name, x), found in zip(asked.items(), fakes.run(cases), strict=True):
        assert not isinstance(found, str), found
        assert_within_ulps(name, x, found[0])


def operations_of_the_cpu() -> set[str]:
    """The names of all operations, as the sources of its loops have them."""
    text = (SOURCES / "fused" / "loops.inc").read_text(encoding="utf-8")
    return set(re.findall(r'^      \{"(\w+)", ', text, re.MULTILINE))


REDUCTIONS = {"sum", "mean", "max", "min"}


@pytest.mark.parametrize("dtype", DTYPES)
def test_operations_are_those_of_the_cpu_but_for_the_sign_of_a_zero(fakes: Fakes, dtype: str):
    """Infinities, NaNs, the largest and the least numbers included."""
    is_float, is_bool = dtype in ("float", "double"), dtype == "bool"
    known = {} if is_bool else {**NUMBERS, **(FLOATS | FUNCTIONS if is_float else {})}
    names = [*known, *COMPARED, *(LOGIC if is_bool else {})]
    every = {*NUMBERS, *FLOATS, *FUNCTIONS, *COMPARED, *LOGIC, *REDUCTIONS, "where"}
    assert every == operations_of_the_cpu()
    feeds = {"a": values(dtype, 1), "b": values(dtype, 2), "c": values("bool", 3)}
    if is_float:  # each special value with each
        edges = np.array([0.0, -0.0, 1, -1, np.inf, -np.inf, np.nan], feeds["a"].dtype)
        p, q = np.meshgrid(edges, edges)
        feeds["a"][: p.size], feeds["b"][: q.size] = p.ravel(), q.ravel()
    lines = [f"a = input {dtype}", f"b = input {dtype}", "c = input bool", "t = where c a b"]
    lines += [f"t_{name} = {name} a{' b' if name in TWO else ''}" for name in names]
    outputs = ["t", *(f"t_{name}" for name in names)]
    text = "\n".join([*lines, *(f"output {name}" for name in outputs)])
    for name, one, other in zip(
        outputs, fakes.one(text, feeds), pointwise(text, feeds), strict=True
    ):
        if name.removeprefix("t_") in FUNCTIONS:
            near = 2e-6 if dtype == "float" else 1e-13
            tiny = float(np.finfo(one.dtype).smallest_subnormal)
            np.testing.assert_allclose(one, other, rtol=near, atol=4 * tiny, err_msg=name)
        else:
            zero = one.dtype.type(0)
            assert same_bits(one if is_bool else one + zero, other if is_bool else other + zero), (
                name
            )

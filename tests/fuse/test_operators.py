"""Each row of the table against ONNX Runtime's own kernel, on ordinary and on special values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper
from scipy import special

from planner.fuse.operators import CASTS, OPERATORS, POWERS, Writer
from tests.fuse.graphs import (
    Array,
    here,
    model_of,
    pointwise,
    pointwise_model,
    same_bits,
    session,
    ulps,
)

DTYPES = {"float": "f4", "double": "f8", "int32": "i4", "int64": "i8", "bool": "?"}
ONE = "Neg Abs Sqrt Reciprocal Relu Not Cast Exp Log Tanh Erf Sigmoid HardSigmoid"
ROWS = "ReduceSum ReduceMean ReduceMax Softmax LogSoftmax"
ARITY = {"Where": 3, "LayerNormalization": 3} | dict.fromkeys([*ONE.split(), *ROWS.split()], 1)
MOST_ULPS = {"Exp": 2, "Log": 2, "Tanh": 3, "Erf": 3, "Sigmoid": 3}
"""Of our functions against float64; `docs/native.md` states them."""
TRUE = {
    "Exp": np.exp,
    "Log": np.log,
    "Tanh": np.tanh,
    "Erf": special.erf,
    "Sigmoid": special.expit,
}


def values(dtype: str, seed: int, count: int = 3001) -> Array:
    """Ordinary values and, of floats, the special ones."""
    rng = np.random.default_rng(seed)
    if dtype == "bool":
        return rng.integers(0, 2, count).astype(bool)
    if dtype.startswith("int"):
        return rng.integers(-50, 50, count).astype(DTYPES[dtype])
    found = (rng.standard_normal(count) * 10.0 ** rng.integers(-3, 3, count)).astype(DTYPES[dtype])
    tiny = np.finfo(found.dtype).smallest_subnormal
    edges = [0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, tiny, -tiny, np.finfo(found.dtype).max]
    found[: 2 * len(edges)] = [*edges, *rng.permutation(edges)]
    return rng.permutation(found)


Run = Callable[[onnx.ModelProto, Mapping[str, Array]], list[Array]]


def both(
    op_type: str,
    dtype: str,
    single: Mapping[int, Array] | None = None,
    *,
    run: Run = here,
    **attributes: Any,
) -> tuple[Array, Array]:
    """What ONNX Runtime's kernel makes of arrays, and what the row's program makes.

    Args:
        single: by the place of an input, the one element that it has.
        run: runs a model on the device.
    """
    row = OPERATORS[op_type]
    kinds = [dtype] * ARITY.get(op_type, 2)
    if op_type == "Where":
        kinds[0] = "bool"
    feeds = {f"x{i}": values(kind, i) for i, kind in enumerate(kinds)}
    feeds |= {f"x{i}": value for i, value in (single or {}).items()}
    nodes = [helper.make_node(op_type, list(feeds), ["out"], **attributes)]
    if row.reduces:
        feeds = {name: np.nan_to_num(x, posinf=3, neginf=-2)[:3000] for name, x in feeds.items()}
        if not row.reads_one:
            feeds = {
                name: x.clip(-50, 50)[: None if name == "x0" else 100] for name, x in feeds.items()
            }
        feeds["x0"] = feeds["x0"].reshape(30, 100)
        nodes = [helper.make_node(op_type, list(feeds), ["out"], **attributes)]
    if row.reduces and row.reads_one:
        axes = helper.make_node("Constant", [], ["axes"], value_ints=[1])
        nodes = [axes, helper.make_node(op_type, ["x0", "axes"], ["out"], keepdims=1)]
    (wanted,) = run(model_of(nodes, feeds, ["out"]), feeds)
    writer = Writer()
    made, *_ = row.emit(writer, list(feeds), kinds[-1], attributes)
    head = [f"x{i} = input {kind}" for i, kind in enumerate(kinds)]
    tail = f"output {made}{' keep' if row.reduces and row.reads_one else ''}"
    text = "\n".join([*(["axes 1"] if row.reduces else []), *head, *writer.lines, tail])
    (found,) = run(pointwise_model(text, feeds), feeds)
    return wanted, found


CASES = [(name, dtype) for name, row in OPERATORS.items() for dtype in sorted(row.types)]
APART = ("Cast", "Pow")
EXACT = [(name, dtype) for name, dtype in CASES if OPERATORS[name].exact and name not in APART]
INEXACT = [(name, dtype) for name, dtype in CASES if not OPERATORS[name].exact]


@pytest.mark.parametrize(("op_type", "dtype"), EXACT)
def test_exact_rows_have_the_bits_of_onnxruntime(op_type: str, dtype: str):
    wanted, found = both(op_type, dtype)
    assert same_bits(wanted, found), [
        (a, b) for a, b in zip(wanted.flat, found.flat, strict=True) if a != b
    ][:5]


@pytest.mark.parametrize(("op_type", "dtype"), [c for c in EXACT if ARITY.get(c[0], 2) > 1])
def test_exact_rows_have_them_where_an_operand_is_a_single_element(op_type: str, dtype: str):
    kinds = ["bool", dtype, dtype] if op_type == "Where" else [dtype, dtype]
    for place, kind in enumerate(kinds):
        for value in (0.0, -0.0, np.nan, -np.inf) if kind in ("float", "double") else (0, 1):
            single = {place: np.array([value], dtype=DTYPES[kind])}
            wanted, found = both(op_type, dtype, single)
            if op_type in ("Max", "Min"):  # of 0 and -0, either
                wanted, found = wanted + wanted.dtype.type(0), found + found.dtype.type(0)
            assert same_bits(wanted, found), (place, value)


@pytest.mark.parametrize("exponent", POWERS)
@pytest.mark.parametrize("dtype", ["float", "double"])
def test_powers_have_the_bits_of_onnxruntime(dtype: str, exponent: float):
    x = values(dtype, 0)
    feeds = {"x": x, "y": np.array([exponent], dtype=x.dtype)}
    model = model_of([helper.make_node("Pow", ["x", "y"], ["out"])], feeds, ["out"])
    writer = Writer()
    (made,) = OPERATORS["Pow"].emit(writer, ["x"], dtype, {"exponent": exponent})
    lines = [f"x = input {dtype}", *writer.lines, f"output {made}"]
    assert same_bits(session(model).run(None, feeds)[0], pointwise("\n".join(lines), {"x": x})[0])


@pytest.mark.parametrize("op_type", ["Max", "Min"])
def test_onnxruntime_takes_either_zero_by_the_place_in_a_vector(op_type: str):
    """So that no row has its bits there: `GroupSearch` leaves it alone."""
    single = {0: np.full(67, -0.0, "f4"), 1: np.zeros(67, "f4")}
    wanted, found = both(op_type, "float", single)
    assert np.array_equal(wanted, found)
    assert len(set(np.signbit(wanted))) == 2 and len(set(np.signbit(found))) == 1


@pytest.mark.parametrize("to", CASTS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_casts_have_the_bits_of_onnxruntime(dtype: str, to: int):
    wanted, found = both("Cast", dtype, to=to)
    if dtype in ("float", "double") and CASTS[to].startswith("int"):  # undefined in C++ beyond
        x = values(dtype, 0).astype("f8")
        fits = np.abs(x) < 2.0**31
        wanted, found = wanted[fits], found[fits]
    assert same_bits(wanted, found)


@pytest.mark.parametrize(("op_type", "dtype"), INEXACT)
def test_other_rows_are_within_rounding_of_onnxruntime(op_type: str, dtype: str):
    wanted, found = both(op_type, dtype)
    assert np.array_equal(np.isnan(wanted), np.isnan(found))
    wide = 1e-5 if dtype == "float" else 1e-12
    scale = (
        np.abs(np.where(np.isfinite(wanted), wanted, 0)).max() if OPERATORS[op_type].reduces else 1
    )
    np.testing.assert_allclose(found, wanted, rtol=wide, atol=wide * scale * 1e-2)


@pytest.mark.parametrize("dtype", ["float", "double"])
@pytest.mark.parametrize("op_type", ["ReduceSum", "ReduceMean", "ReduceMax"])
def test_rows_with_special_values_reduce_as_in_onnxruntime(op_type: str, dtype: str):
    """But for the largest of a row with a NaN: ONNX Runtime's kernel drops it or not, by its place."""
    x = values(dtype, 0)[:3000].reshape(30, 100)
    nodes = [
        helper.make_node("Constant", [], ["axes"], value_ints=[1]),
        helper.make_node(op_type, ["x", "axes"], ["out"], keepdims=1),
    ]
    (wanted,) = here(model_of(nodes, {"x": x}, ["out"]), {"x": x})
    name = op_type.removeprefix("Reduce").lower()
    text = f"axes 1\nx = input {dtype}\nt = {name} x\noutput t keep"
    (found,) = pointwise(text, {"x": x})
    has_nan = np.isnan(x).any(axis=1, keepdims=True)
    assert has_nan.any() and np.isinf(found).any()
    if op_type == "ReduceMax":
        assert np.array_equal(np.isnan(found), has_nan)
        wanted = np.where(has_nan, np.nan, wanted).astype(x.dtype)
        assert same_bits(wanted, found)
    wide = 1e-4 if dtype == "float" else 1e-12
    np.testing.assert_allclose(found, wanted, rtol=wide)


def spread(op_type: str) -> Array:
    """Numbers of all binades, of the whole range of an exponential, and where most values lie."""
    rng = np.random.default_rng(1)
    bits = rng.integers(0, 2**32, 200_000, dtype=np.uint32).view(np.float32)
    near = [rng.uniform(-most, most, 100_000).astype("f4") for most in (1, 12, 110)]
    x = np.concatenate([bits, *near])
    x = np.abs(x) if op_type == "Log" else x
    return x[np.isfinite(x)]


def assert_within_ulps(op_type: str, x: Array, found: Array) -> None:
    """That what a function makes of numbers is near enough to float64's."""
    with np.errstate(all="ignore"):
        wanted = TRUE[op_type](x.astype(np.float64))
        fits = np.isfinite(wanted.astype(np.float32))
    assert np.array_equal(np.isfinite(found), fits), op_type
    assert ulps(found[fits], wanted[fits]) <= MOST_ULPS[op_type], op_type


@pytest.mark.parametrize("op_type", MOST_ULPS)
def test_functions_are_within_their_ulps_of_float64(op_type: str):
    x = spread(op_type)
    (found,) = pointwise(f"x = input float\nt = {op_type.lower()} x\noutput t", {"x": x})
    assert_within_ulps(op_type, x, found)


def test_every_operator_that_the_table_calls_exact_is_one_of_onnx():
    for op_type in OPERATORS:
        assert onnx.defs.has(op_type)

"""The operator itself: random programs against NumPy in float64, shapes, threads, errors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from onnx import helper
from scipy import special

from tests.fuse.graphs import Array, model_of, pointwise, same_bits, session

UNARY: Mapping[str, Callable[[Array], Array]] = {
    "neg": np.negative,
    "abs": np.abs,
    "relu": lambda x: np.maximum(x, 0),
    "tanh": np.tanh,
    "erf": special.erf,
    "sigmoid": special.expit,
    "exp": lambda x: np.exp(np.minimum(x, 3)),
}
BINARY: Mapping[str, Callable[[Array, Array], Array]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "maximum": np.maximum,
    "minimum": np.minimum,
}
REDUCTIONS: Mapping[str, Callable[..., Array]] = {"sum": np.sum, "mean": np.mean, "max": np.max}
SHAPES: list[tuple[int, ...]] = [(7, 5, 33), (7, 5, 1), (33,), (5, 1), (1, 1, 1), (), (1, 5, 33)]


class Drawn:
    """A random program over (7, 5, 33) with rows of its last axis, and what NumPy makes of it."""

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.lines, self.feeds = ["axes 1"], dict[str, Array]()
        self.known: list[tuple[str, Array, bool]] = []  # name, value in float64, once a row
        for i, place in enumerate([0, *rng.integers(0, len(SHAPES), 3)]):
            x = rng.standard_normal(SHAPES[place]).astype(np.float32)
            is_row = x.ndim == 0 or x.shape[-1] == 1
            self.lines.append(f"x{i} = input float{' row' if is_row else ''}")
            self.feeds[f"x{i}"] = x
            self.known.append((f"x{i}", x.astype(np.float64), is_row))
        self.made: list[tuple[str, Array, bool]] = []
        for i in range(14):
            self._step(f"t{i}", rng)
        self.outputs = [self.made[-1], self.made[5], self.made[9]]
        self.lines += [f"output {n}{' keep' if row else ''}" for n, _, row in self.outputs]

    def _step(self, name: str, rng: np.random.Generator) -> None:
        a, b = (self.known[i] for i in rng.integers(0, len(self.known), 2))
        kind = rng.integers(0, 5)
        if kind == 0 and not a[2]:
            operation = str(rng.choice(list(REDUCTIONS)))
            full = np.broadcast_to(a[1], (7, 5, 33))
            made = (name, REDUCTIONS[operation](full, axis=-1, keepdims=True), True)
            self.lines.append(f"{name} = {operation} {a[0]}")
        elif kind == 1:
            operation = str(rng.choice(list(UNARY)))
            read = a[0]
            if operation == "exp":
                self.lines += [f"c{name} = constant float 3", f"m{name} = minimum {read} c{name}"]
                read = f"m{name}"
            made = (name, UNARY[operation](a[1]), a[2])
            self.lines.append(f"{name} = {operation} {read}")
        else:
            operation = str(rng.choice(list(BINARY)))
            made = (name, BINARY[operation](a[1], b[1]), a[2] and b[2])
            self.lines.append(f"{name} = {operation} {a[0]} {b[0]}")
        self.known.append(made)
        self.made.append(made)


@pytest.mark.parametrize("seed", range(40))
def test_random_programs_are_within_rounding_of_float64(seed: int):
    drawn = Drawn(seed)
    found = pointwise("\n".join(drawn.lines), drawn.feeds)
    for (name, wanted, is_row), value in zip(drawn.outputs, found, strict=True):
        shape = (7, 5, 1) if is_row else (7, 5, 33)
        assert value.shape == shape, name
        wanted = np.broadcast_to(wanted, shape)
        scale = max(1.0, float(np.abs(wanted).max()))
        most = max([1.0, *(float(np.abs(v).max()) for _, v, _ in drawn.known)])
        np.testing.assert_allclose(value, wanted, rtol=1e-4, atol=1e-5 * max(scale, most))


def test_the_bits_are_the_same_on_any_number_of_threads_and_each_run():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((301, 7, 129)).astype(np.float32)
    text = "axes 1\nx = input float\nm = mean x\nd = sub x m\ne = exp d\ns = sum e\ny = div e s\n"
    text += "output y\noutput s drop"
    first = pointwise(text, {"x": x})
    for threads in (1, 2, 4, 4):
        again = pointwise(text, {"x": x}, threads)
        assert all(map(same_bits, first, again))
    assert first[1].shape == (301, 7)


@pytest.mark.parametrize("shape", [(), (1,), (0,), (3, 0), (1, 1, 1), (1025,), (2, 1023)])
def test_scalars_empty_tensors_and_odd_sizes(shape: tuple[int, ...]):
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    (found,) = pointwise("x = input float\nt = mul x x\nu = add t x\noutput u", {"x": x})
    assert same_bits(found, np.asarray(x * x + x))


@pytest.mark.parametrize("columns", [1, 2, 15, 16, 17, 1000, 5000])
def test_rows_of_any_length(columns: int):
    x = np.random.default_rng(0).standard_normal((5, columns)).astype(np.float64)
    text = "axes 1\nx = input double\ns = sum x\ng = max x\nt = sub x g\noutput s keep\noutput t"
    total, rest = pointwise(text, {"x": x})
    np.testing.assert_allclose(total, x.sum(-1, keepdims=True), rtol=1e-12, atol=1e-12)
    assert same_bits(rest, x - x.max(-1, keepdims=True))


def test_rows_without_elements():
    x = np.zeros((4, 0), dtype=np.float32)
    text = "axes 1\nx = input float\ns = {} x\noutput s drop"
    assert same_bits(pointwise(text.format("sum"), {"x": x})[0], np.zeros(4, dtype=np.float32))
    with pytest.raises(Exception, match="'max' of rows without elements"):
        pointwise(text.format("max"), {"x": x})


@pytest.mark.parametrize("step", ["neg x", "add x x", "where b x x", "cast double x"])
def test_steps_between_have_no_elements_either(step: str):
    """An operator's empty result has no memory to read a first element of."""
    text = f"axes 1\nx = input float\nb = equal x x\nt = {step}\ns = sum t\noutput s drop"
    nodes = [
        helper.make_node("Sqrt", ["x"], ["y"]),
        helper.make_node("Pointwise", ["y"], ["s"], domain="planner.fused", program=text),
    ]
    feeds = {"x": np.zeros((4, 0), "f4")}
    (found,) = session(model_of(nodes, feeds, ["s"])).run(None, feeds)
    assert same_bits(found, np.zeros(4, "f8" if "double" in step else "f4"))


@pytest.mark.parametrize("dtype", ["float", "double", "int32", "int64"])
def test_every_type_compares_selects_and_casts(dtype: str):
    kinds = {"float": "f4", "double": "f8", "int32": "i4", "int64": "i8"}
    rng = np.random.default_rng(0)
    feeds = {name: rng.integers(-9, 9, (40, 50)).astype(kinds[dtype]) for name in "xy"}
    text = f"""x = input {dtype}
        y = input {dtype}
        b = less x y
        n = not b
        w = where n x y
        f = cast float n
        output w
        output f
        output b"""
    chosen, cast, less = pointwise(text, feeds)
    x, y = feeds["x"], feeds["y"]
    assert same_bits(chosen, np.maximum(x, y))
    assert same_bits(cast, (x >= y).astype(np.float32)) and same_bits(less, x < y)


def test_infinities_and_nans_go_where_they_go_in_numpy():
    x = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1e38], dtype=np.float32)
    text = "x = input float\na = mul x x\nb = sub a x\nc = exp x\nd = tanh x\ne = erf x\n"
    text += "\n".join(f"output {name}" for name in "bcde")
    found = pointwise(text, {"x": x})
    with np.errstate(all="ignore"):
        wanted: list[Any] = [x * x - x, np.exp(x), np.tanh(x), special.erf(x)]
    for one, other in zip(found, wanted, strict=True):
        assert np.array_equal(one, other.astype(np.float32), equal_nan=True)


WRONG = {
    "t = mul x": r"line 2, 't = mul x': mul takes 2 value\(s\)",
    "t = frob x": "there is no operation 'frob'",
    "t = mul x z": "there is no value 'z' above",
    "x = neg x": "there is a value of that name already",
    "t = and x x": "and is not for values of these types",
    "t = cast half x": "'half' is no type",
    "t = constant float 1x": "'1x' is no number",
    "t = constant int32 3000000000": "no whole number from -2147483648",
    "t = sum x": "sum needs axes N on the first line",
    "axes 1": "expected axes N, before anything else",
    "output x": "no operation computes it",
    "t = neg x\noutput t keep": "keep and drop are for what a row has once",
    "t = neg x\noutput t\noutput t": "line 4, 'output t': it is an output already",
    "mul x x": "expected NAME = OPERATION VALUE",
}


@pytest.mark.parametrize("line", WRONG)
def test_what_is_wrong_is_said_when_the_session_is_created(line: str):
    tail = "" if "output" in line else "\nu = neg x\noutput u"
    with pytest.raises(Exception, match=WRONG[line]):
        pointwise(f"x = input float\n{line}{tail}", {"x": np.zeros(3, dtype=np.float32)})


def test_inputs_that_do_not_go_together_are_named():
    feeds = {"x": np.zeros((3, 4), "f4"), "y": np.zeros((3,), "f4")}
    with pytest.raises(Exception, match=r"'y' has the shape \(3\)"):
        pointwise("x = input float\ny = input float\nt = add x y\noutput t", feeds)


def test_an_input_that_is_broadcast_may_be_the_memory_of_a_rows_output():
    """ONNX Runtime writes the first output over the first input where their shapes agree."""
    feeds = {"a": np.arange(1, 9, dtype=np.float32), "x": np.ones((8, 8), np.float32)}
    text = "axes 1\na = input float\nx = input float\nt = mul a x\ns = sum t\noutput s drop"
    nodes = [
        helper.make_node("Sqrt", ["a"], ["b"]),
        helper.make_node("Pointwise", ["b", "x"], ["s"], domain="planner.fused", program=text),
        helper.make_node("Neg", ["s"], ["out"]),
    ]
    (found,) = session(model_of(nodes, feeds, ["out"])).run(None, feeds)
    np.testing.assert_allclose(found, -np.full(8, np.sqrt(feeds["a"]).sum()), rtol=1e-5)

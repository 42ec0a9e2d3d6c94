"""The kernels that planner.fused has for CUDA, run on the CPU: the source that a card's compiler gets is
compiled as C++ (`tests/native/fake_kernel.h`), and launched by a fake driver.

Nothing here is a claim about a card's own functions or times.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import helper

from planner.fuse.rewrite import with_fusion
from planner.graph.schedule import default_order
from planner.targets.cuda import FUSED
from tests.fuse.fake_cuda import Case, Fakes
from tests.fuse.graphs import Array, model_of, pointwise, same_bits, session
from tests.fuse.test_operators import DTYPES, values
from tests.fuse.test_pointwise import Drawn
from tests.graphs import graph_of

ZOO = Path(__file__).parents[2] / "models" / "zoo"


def test_random_programs_are_those_of_float64_and_of_the_cpu(fakes: Fakes):
    drawn = [Drawn(seed) for seed in range(10)]
    cases = [("\n".join(each.lines), each.feeds) for each in drawn]
    for each, found in zip(drawn, fakes.run(cases), strict=True):
        assert not isinstance(found, str), found
        here = pointwise("\n".join(each.lines), each.feeds)
        most = max([1.0, *(float(np.abs(v).max()) for _, v, _ in each.known)])
        for (name, wanted, is_row), value, on_cpu in zip(each.outputs, found, here, strict=True):
            shape = (7, 5, 1) if is_row else (7, 5, 33)
            assert value.shape == shape, name
            near = {"rtol": 1e-4, "atol": 1e-5 * most}
            np.testing.assert_allclose(value, np.broadcast_to(wanted, shape), **near)
            np.testing.assert_allclose(value, on_cpu, **near)


@pytest.mark.parametrize("dtype", ["float", "double", "int32", "int64"])
def test_rows_of_any_length_reduce(fakes: Fakes, dtype: str):
    is_float = dtype in ("float", "double")
    names = ["sum", "max", "min", *(["mean"] if is_float else [])]
    text = "\n".join(
        [
            "axes 1",
            f"x = input {dtype}",
            *(f"t_{name} = {name} x" for name in names),
            "d = sub x t_max",
            "e = sum d",  # a second stage
            "f = add e t_min",
            *(f"output t_{name} {'keep' if i else 'drop'}" for i, name in enumerate(names)),
            "output d",
            "output f keep",
        ]
    )
    cases: list[Case] = []
    for columns in (1, 2, 33, 256, 257, 5000):
        x = np.random.default_rng(columns).integers(-50, 50, (5, columns)).astype(DTYPES[dtype])
        cases.append((text, {"x": x}))
    for (_, feeds), found in zip(cases, fakes.run(cases), strict=True):
        assert not isinstance(found, str), found
        x, over = feeds["x"], {"axis": -1, "keepdims": True}
        wanted = [x.sum(-1), x.max(**over), x.min(**over)]  # whole numbers: every order is exact
        wanted += [x.mean(**over)] if is_float else []
        gap = x - x.max(**over)
        wanted += [gap, gap.sum(**over) + x.min(**over)]
        for one, other in zip(found, wanted, strict=True):
            assert same_bits(one, other.astype(x.dtype)), (x.shape, one, other)


HALVES = {"float16": (10, np.dtype(np.float16)), "bfloat16": (16, np.dtype(ml_dtypes.bfloat16))}
"""By name: the type's number in ONNX, and its type in NumPy."""


def halved(text: str, feeds: Mapping[str, Array], number: int, outputs: int) -> Case:
    """A model that casts what it is fed to a half, runs a program on that, and casts the results back."""
    made = [f"t{i}" for i in range(outputs)]
    cast = [helper.make_node("Cast", [name], [f"{name}h"], to=number) for name in feeds]
    back = [helper.make_node("Cast", [f"{name}h"], [name], to=1) for name in made]
    reads, writes = [f"{name}h" for name in feeds], [f"{name}h" for name in made]
    node = helper.make_node("Pointwise", reads, writes, domain="planner.fused", program=text)
    return model_of([*cast, node, *back], feeds, made), feeds


@pytest.mark.parametrize("dtype", HALVES)
def test_values_of_16_bits_are_rounded_after_each_operation(fakes: Fakes, dtype: str):
    number, kind = HALVES[dtype]

    def rounded(array: Array) -> Array:
        return array.astype(kind).astype(np.float32)

    text = f"""axes 1
        x = input {dtype}
        y = input {dtype}
        c = constant {dtype} 0.1
        a = add x y
        b = mul a c
        d = div b y
        l = less x y
        w = where l d b
        g = max w
        f = cast float w
        s = sqrt f
        e = cast {dtype} s
        n = neg x
        output b
        output w
        output g keep
        output e
        output n"""
    feeds = {"x": values("float", 1, 3000), "y": values("float", 2, 3000)}
    feeds = {name: array.reshape(30, 100) for name, array in feeds.items()}
    every = np.arange(1 << 16, dtype=np.uint16).view(kind).astype(np.float32).reshape(256, 256)
    case, all_values = (halved(text, fed, number, 5) for fed in (feeds, {"x": every, "y": every}))
    results, same = fakes.run([case, all_values])
    with np.errstate(all="ignore"):
        x, y = map(rounded, feeds.values())
        b = rounded(rounded(x + y) * rounded(np.float32([0.1])))
        w = np.where(x < y, rounded(b / y), b)
        wanted = [b, w, w.max(-1, keepdims=True), rounded(np.sqrt(w)), -x]
    for name, one, other in zip("bwgen", results, wanted, strict=True):
        assert same_bits(one, other), (name, one[one != other][:5], other[one != other][:5])
    assert same_bits(same[-1], -every)


@pytest.mark.parametrize("dtype", HALVES)
def test_rows_of_16_bits_are_added_up_as_floats(fakes: Fakes, dtype: str):
    number, kind = HALVES[dtype]
    x = np.random.default_rng(0).standard_normal((7, 1000)).astype(kind).astype(np.float32)
    text = f"axes 1\nx = input {dtype}\ns = sum x\nm = mean x\noutput s keep\noutput m keep"
    (found,) = fakes.run([halved(text, {"x": x}, number, 2)])
    for one, wide in zip(found, (x.sum(-1), x.mean(-1)), strict=True):
        unit = float(ml_dtypes.finfo(kind).eps)
        np.testing.assert_allclose(one[:, 0], wide, rtol=unit, atol=1e-6)


def test_programs_of_16_bits_are_for_cuda_alone():
    for dtype, (number, _) in HALVES.items():
        model, feeds = halved(
            f"x = input {dtype}\nt = neg x\noutput t", {"x": np.ones(3, np.float32)}, number, 1
        )
        assert not isinstance(model, str)
        with pytest.raises(
            Exception, match="'x' is of 16 bits, of which there are programs on CUDA"
        ):
            session(model).run(None, dict(feeds))


def test_a_nan_or_an_infinity_in_a_row_is_there_in_what_it_reduces_to(fakes: Fakes):
    x = np.ones((4, 300), np.float32)
    x[0, 299], x[1, 7], x[2, 0] = np.nan, np.inf, -np.inf
    text = "axes 1\nx = input float\ns = sum x\ng = max x\nl = min x\n"
    text += "".join(f"output {name} drop\n" for name in "sgl")
    total, most, least = fakes.one(text, {"x": x})
    assert np.array_equal(total, [np.nan, np.inf, -np.inf, 300], equal_nan=True)
    assert np.array_equal(most, [np.nan, np.inf, 1, 1], equal_nan=True)
    assert np.array_equal(least, [np.nan, 1, -np.inf, 1], equal_nan=True)


def test_scalars_empty_tensors_and_rows_without_elements(fakes: Fakes):
    text = "x = input float\nt = mul x x\nu = add t x\noutput u"
    draw = np.random.default_rng(0)
    shapes = [(), (1,), (0,), (3, 0), (1, 1, 1), (1025,), (2, 1023)]
    cases: list[Case] = [
        (text, {"x": np.asarray(draw.standard_normal(s), np.float32)}) for s in shapes
    ]
    rows = "axes 1\nx = input float\ns = {} x\noutput s drop"
    empty = {"x": np.zeros((4, 0), np.float32)}
    *found, total, mean, most = fakes.run(
        [*cases, *((rows.format(name), empty) for name in ("sum", "mean", "max"))]
    )
    for (_, feeds), one in zip(cases, found, strict=True):
        x = np.asarray(feeds["x"])
        assert same_bits(one[0], np.asarray(x * x + x)), x.shape
    assert same_bits(total[0], np.zeros(4, np.float32)) and np.isnan(mean[0]).all()
    assert "'max' of rows without elements" in most


def test_inputs_are_broadcast_along_any_axes(fakes: Fakes):
    shapes = [(2, 3, 4, 5), (3, 1, 5), (2, 1, 4, 1), (1, 3, 1, 1), (4, 1), (5,), (1,), ()]
    draw = np.random.default_rng(0)
    feeds = {f"x{i}": draw.integers(-99, 99, shape) for i, shape in enumerate(shapes)}
    lines = [f"{name} = input int64" for name in feeds]
    lines += [f"t{i} = add {f't{i - 1}' if i > 1 else 'x0'} x{i}" for i in range(1, len(shapes))]
    over = len(shapes) - 1
    plain = "\n".join([*lines, f"output t{over}"])
    rows = "\n".join(["axes 2", *lines, f"s = sum t{over}", "output s drop", f"output t{over}"])
    rows = rows.replace("x3 = input int64", "x3 = input int64 row")
    alone, by_rows = fakes.run([(plain, feeds), (rows, feeds)])
    wanted = sum(feeds.values())
    assert same_bits(alone[0], np.asarray(wanted))
    assert same_bits(by_rows[0], np.asarray(wanted).sum((-1, -2))), by_rows
    assert same_bits(by_rows[1], np.asarray(wanted))


SOFTMAX = """axes 1
x = input float
r = input float row
g = max x
d = sub x g
e = exp d
s = sum e
y = div e s
q = mul r s
output y
output q keep
"""


def test_each_barrier_is_needed(fakes: Fakes):
    draw = np.random.default_rng(0)
    feeds = {"x": draw.standard_normal((60, 300), np.float32), "r": np.ones((60, 1), np.float32)}
    right = fakes.one(SOFTMAX, feeds)
    here = pointwise(SOFTMAX, feeds)
    for one, other in zip(right, here, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5)
    for mutant in (1, 2, 3):
        wrong = fakes.one(SOFTMAX, feeds, FAKE_NVRTC_MUTANT=str(mutant))
        assert not all(map(same_bits, right, wrong)), mutant


def test_a_rows_output_is_written_once_all_threads_have_read(fakes: Fakes):
    """ONNX Runtime writes the first output over the first input, which each thread of the row reads."""
    text = "axes 1\nr = input float row\nx = input float\nn = neg r\nt = add x r\n"
    text += "output n keep\noutput t"
    nodes = [
        helper.make_node("Sqrt", ["a"], ["r"]),
        helper.make_node("Pointwise", ["r", "x"], ["n", "t"], domain="planner.fused", program=text),
        helper.make_node("Abs", ["n"], ["m"]),
    ]
    x = np.random.default_rng(0).standard_normal((60, 300), np.float32)
    feeds = {"a": np.arange(1, 61, dtype=np.float32).reshape(60, 1), "x": x}
    model, root = model_of(nodes, feeds, ["m", "t"]), np.sqrt(feeds["a"])
    ((m, t),) = fakes.run([(model, feeds)])
    assert same_bits(m, root) and same_bits(t, x + root)
    ((m, t),) = fakes.run([(model, feeds)], FAKE_NVRTC_MUTANT="1")
    assert same_bits(m, root) and not same_bits(t, x + root)


def test_memory_that_is_written_over_is_read_before(fakes: Fakes):
    """ONNX Runtime writes the first output over the first input where their shapes agree."""
    draw = np.random.default_rng(0)
    feeds = {"a": draw.standard_normal((50, 300), np.float32)}
    text = "axes 1\nb = input float\nt = mul b b\nm = sum t\nd = sub b m\noutput t\noutput d"
    nodes = [
        helper.make_node("Neg", ["a"], ["b"]),
        helper.make_node("Pointwise", ["b"], ["t", "d"], domain="planner.fused", program=text),
        helper.make_node("Neg", ["t"], ["u"]),
    ]
    model = model_of(nodes, feeds, ["u", "d"])
    (found,) = fakes.run([(model, feeds)])
    for one, other in zip(found, session(model).run(None, feeds), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-4)


def test_memory_that_other_threads_would_read_again_is_refused(fakes: Fakes):
    feeds = {"a": np.arange(1, 9, dtype=np.float32), "x": np.ones((8, 8), np.float32)}
    text = "axes 1\na = input float\nx = input float\nt = mul a x\ns = sum t\noutput s drop"
    nodes = [
        helper.make_node("Sqrt", ["a"], ["b"]),
        helper.make_node("Pointwise", ["b", "x"], ["s"], domain="planner.fused", program=text),
        helper.make_node("Neg", ["s"], ["out"]),
    ]
    (said,) = fakes.run([(model_of(nodes, feeds, ["out"]), feeds)])
    assert "output 's' is the memory of input 'a', which is broadcast" in said


@pytest.mark.parametrize("mode", ["exact", "auto"])
def test_a_training_graph_with_fused_nodes_computes_what_it_did(fakes: Fakes, mode: str):
    from planner.runtime.feeds.inputs import make_inputs

    path = ZOO / "mlp_adamw.onnx"
    model, graph = graph_of(onnx.load(path))
    made = with_fusion(
        model, graph, default_order(graph), only_exact=mode == "exact", kernels=FUSED
    )
    assert made is not None and len(made.members) > 5
    import onnx_ir as ir

    feeds, _ = make_inputs(path, 0)
    (found,) = fakes.run([(ir.to_proto(made.model), feeds)])
    assert not isinstance(found, str), found
    for one, other in zip(found, session(onnx.load(path)).run(None, feeds), strict=True):
        scale = max(1e-6, float(np.abs(other).max()))
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-5 * scale)


def test_threads_on_one_session_have_its_bits(fakes: Fakes):
    draw = np.random.default_rng(0)
    feeds = {"x": draw.standard_normal((9, 70), np.float32), "r": np.ones((9, 1), np.float32)}
    (found,) = fakes.run([(SOFTMAX, feeds)], threads=True)
    assert not isinstance(found, str), found

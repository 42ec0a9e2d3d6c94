"""The kernels that planner.fused has for CUDA, run on the CPU: the source that a card's compiler gets is
compiled as C++ (`tests/native/fake_kernel.h`), and launched by a fake driver.

Nothing here is a claim about a card's own functions or times. Where NVIDIA's compiler is installed, it
compiles the same sources, without a card.
"""

from __future__ import annotations

import os
import pickle
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper
from scipy import special

from planner.fuse.operators import CASTS
from planner.fuse.rewrite import with_fusion
from planner.graph.schedule import default_order
from planner.native import library_path
from tests.fuse.graphs import Array, model_of, pointwise, same_bits, session
from tests.fuse.test_operators import DTYPES, values
from tests.fuse.test_pointwise import Drawn
from tests.graphs import graph_of
from tests.native.fakes import (
    HERE,
    compiler,
    environment,
    library_for_tests,
    python,
    shared_library,
)

ZOO = Path(__file__).parents[2] / "models" / "zoo"
Case = tuple[str | onnx.ModelProto, Mapping[str, Array]]


@dataclass(frozen=True)
class Fakes:
    """The test build, the fake driver and the fake compiler, and a folder for what they make."""

    library: Path
    driver: Path
    nvrtc: Path
    folder: Path

    def run(self, cases: Sequence[Case], *, threads: bool = False, **more: str) -> list[Any]:
        """What each case makes on the fake device, or what its error says.

        Args:
            threads: several run each session at once, too.
            more: of the environment; "" takes a variable out.
        """
        folder = self.folder / str(len(list(self.folder.iterdir())))
        folder.mkdir()
        (folder / "cases").write_bytes(pickle.dumps(list(cases)))
        chosen = environment(self.driver) | {
            "PLANNER_TEST_NVRTC": str(self.nvrtc),
            "FAKE_NVRTC_FOLDER": str(folder),
            "FAKE_NVRTC_HEADER": str(HERE / "fake_kernel.h"),
            "FAKE_NVRTC_COMPILER": " ".join(compiler()),
        }
        chosen = {name: text for name, text in (chosen | more).items() if text}
        asked = [self.library, folder, *(["threads"] if threads else [])]
        done = python("-m", "tests.fuse.on_fake_cuda", *asked, seconds=240, **chosen)
        assert done.returncode == 0, done.stderr
        return pickle.loads((folder / "results").read_bytes())

    def one(self, program: str, feeds: Mapping[str, Array], **more: str) -> list[Array]:
        """What one program makes, which must not fail."""
        (found,) = self.run([(program, feeds)], **more)
        assert not isinstance(found, str), found
        return found


@pytest.fixture(scope="module")
def fakes(tmp_path_factory: pytest.TempPathFactory) -> Fakes:
    folder = tmp_path_factory.mktemp("fakes")
    (folder / "runs").mkdir()
    return Fakes(
        library=library_for_tests(folder),
        driver=shared_library("fake_driver", folder / "driver.so"),
        nvrtc=shared_library("fake_nvrtc", folder / "nvrtc.so"),
        folder=folder / "runs",
    )


def test_random_programs_are_those_of_float64_and_of_the_cpu(fakes: Fakes):
    drawn = [Drawn(seed) for seed in range(20)]
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
    "sigmoid": special.expit,
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
    lines = [f"{name} = input {dtype}" for name in feeds]
    lines += [f"t{i} = {n} a{' b' if n in TWO else ''}" for i, n in enumerate(FUNCTIONS)]
    found = fakes.one("\n".join([*lines, *(f"output t{i}" for i in range(len(FUNCTIONS)))]), feeds)
    for (name, function), one in zip(FUNCTIONS.items(), found, strict=True):
        with np.errstate(all="ignore"):
            wide = [x.astype(np.float64) for x in feeds.values()]
            wanted = function(*wide) if name in TWO else function(wide[0])
            wanted = wanted.astype(DTYPES[dtype])
        near = 1e-6 if dtype == "float" else 1e-13
        np.testing.assert_allclose(one, wanted, rtol=near, atol=1e-37, err_msg=name)


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
        model, graph, default_order(graph), only_exact=mode == "exact", device="cuda"
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


PLAIN = "x = input float\nt = mul x x\noutput t"
X = {"x": np.ones(3, np.float32)}


def test_what_is_missing_is_said_with_what_to_do(fakes: Fakes):
    (said,) = fakes.run([(PLAIN, X)], PLANNER_TEST_NVRTC="")
    assert "libnvrtc.so.13 or .12 was not found" in said and "nvidia-cuda-nvrtc" in said
    (said,) = fakes.run([(PLAIN, X)], FAKE_DRIVER_CAPABILITY="70")
    assert "makes no code for compute capability 7.0" in said and "plan without --fuse" in said
    (said,) = fakes.run([(PLAIN, X)], FAKE_NVRTC_HEADER="/no/such/file.h")
    assert "refuses a kernel: NVRTC_ERROR_COMPILATION" in said and "/no/such/file.h" in said
    assert "plan without --fuse; the program:\nx = input" in said
    assert "Name:" in said  # of the node


def test_a_device_newer_than_the_compiler_gets_code_that_the_driver_compiles(fakes: Fakes):
    (found,) = fakes.one(PLAIN, X, FAKE_DRIVER_CAPABILITY="103")
    assert same_bits(found, np.ones(3, np.float32))


def test_what_two_nodes_have_alike_is_compiled_once(fakes: Fakes):
    nodes = [
        helper.make_node("Pointwise", [a], [b], domain="planner.fused", program=PLAIN)
        for a, b in (("x", "y"), ("y", "z"))
    ]
    (found,) = fakes.run([(model_of(nodes, X, ["z"]), X)])
    assert same_bits(found[0], np.ones(3, np.float32))
    newest = max(fakes.folder.iterdir(), key=lambda path: int(path.name))
    assert len(list(newest.glob("*.cu"))) == 1


WHY = """
import onnxruntime
from planner import native
print(onnxruntime.__file__, native.why_no_compiler() or "found", sep="\\n")
"""


def test_the_compiler_is_found_beside_onnxruntime(fakes: Fakes, tmp_path: Path):
    import onnxruntime

    site, libraries = tmp_path / "site", tmp_path / "lib"
    here = Path(onnxruntime.__file__).parent
    shutil.copytree(here, site / "onnxruntime", copy_function=os.symlink)
    libraries.mkdir()
    (libraries / "libcuda.so.1").symlink_to(fakes.driver)

    def why(driver: int = 13000) -> str:
        child = environment(fakes.driver, LD_LIBRARY_PATH=str(libraries))
        child |= {"PYTHONPATH": f"{site}:{HERE.parents[1]}", "FAKE_DRIVER_VERSION": str(driver)}
        done = python("-c", WHY, **child)
        assert done.returncode == 0, done.stderr
        imported, said = done.stdout.splitlines()
        assert Path(imported).is_relative_to(site)
        return said

    assert why().startswith("CUDA's compiler libnvrtc.so.13 or .12 was not found")
    for package, major in (("cu13", 13), ("cuda_nvrtc", 12)):
        folder = site / "nvidia" / package / "lib"
        folder.mkdir(parents=True)
        (folder / f"libnvrtc.so.{major}").symlink_to(fakes.nvrtc)
        assert why(1000 * major) == "found"
        assert why(1000 * major - 10).startswith("CUDA's compiler")  # older than it
    # a session on the CPU has its own kernel where there are two
    shipped = replace(fakes, library=library_path())
    (found,) = shipped.one(PLAIN, X, LD_LIBRARY_PATH=str(libraries))
    assert same_bits(found, X["x"])


def nvrtc() -> Path:
    """NVIDIA's compiler, from its package; skips where it is not installed."""
    missing = "the package nvidia-cuda-nvrtc is not installed"
    nvidia = pytest.importorskip("nvidia", reason=missing)
    found = [p for root in nvidia.__path__ for p in Path(root).glob("*/lib/libnvrtc.so.1?")]
    if not found:
        pytest.skip(missing)
    return found[0]


def programs_of(name: str) -> list[Case]:
    """The programs of a sample with operations fused, each of dims once."""
    model, graph = graph_of(onnx.load(ZOO / f"{name}.onnx"))
    made = with_fusion(model, graph, default_order(graph), only_exact=False, device="cuda")
    assert made is not None
    shape_of = {t.name: t.shape for t in graph.tensors}
    found: dict[Any, Case] = {}
    for node in made.model.graph:
        if node.domain != "planner.fused":
            continue
        text = node.attributes["program"].as_string()
        kinds = [line.split()[3] for line in text.splitlines() if " = input " in line]
        shapes = [shape_of[str(value.name)] for value in node.inputs if value is not None]
        feeds = zip(kinds, shapes, strict=True)
        arrays = {f"x{i}": np.zeros(dims, DTYPES[kind]) for i, (kind, dims) in enumerate(feeds)}
        found[text, tuple(shapes)] = text, arrays
    return list(found.values())


@pytest.mark.parametrize("capability", [75, 80, 90])
def test_nvidias_compiler_takes_the_sources(fakes: Fakes, capability: int):
    cases = [("\n".join(d.lines), d.feeds) for d in map(Drawn, range(12))]
    cases += [*programs_of("gpt"), *programs_of("mlp_adamw")]
    results = fakes.run(
        cases, PLANNER_TEST_NVRTC=str(nvrtc()), FAKE_DRIVER_CAPABILITY=str(capability)
    )
    said = [result for result in results if isinstance(result, str)]
    assert len(cases) > 30 and not said, said[0]


def test_nvidias_compiler_rounds_each_operation_by_itself(fakes: Fakes, tmp_path: Path):
    for dtype, kind in (("float", "f32"), ("double", "f64")):
        names = ["p = mul x x", "q = add p x", "r = div q x", "s = sqrt r", "output s"]
        path = tmp_path / f"{kind}.ptx"
        newer = {"FAKE_DRIVER_CAPABILITY": "999", "FAKE_DRIVER_PTX": str(path)}
        feeds = {"x": np.ones(3, DTYPES[dtype])}
        text = "\n".join([f"x = input {dtype}", *names])
        fakes.one(text, feeds, PLANNER_TEST_NVRTC=str(nvrtc()), **newer)
        ptx = path.read_text()
        for instruction in ("div.rn", "sqrt.rn", "mul(.rn)?", "add(.rn)?"):
            assert re.search(rf"{instruction}\.{kind}", ptx), (instruction, ptx)
        assert "fma" not in ptx and ".ftz" not in ptx and ".approx" not in ptx

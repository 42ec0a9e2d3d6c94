"""Parameters and state that stay in place: bit-equal to feeding arrays by hand, and nothing is copied."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto as T
from onnx import helper as h

import planner
from planner.errors import ModelError, UsageError
from planner.runtime.binding.bind import Bound
from planner.runtime.binding.kinds import Array
from planner.runtime.feeds.inputs import make_inputs

ZOO = Path(__file__).parents[2] / "models" / "zoo"
STEPS = 5
PLANS = {
    "mlp_adamw": {"budget": "50%", "swap": "auto", "copies": "overlapped", "resident": "host"},
    "gpt": {"budget": "60%"},
}


def opened(path: Path) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    return planner.open_session(path, options, ["CPUExecutionProvider"])


def start(path: Path) -> tuple[dict[str, Array], dict[str, Array]]:
    """(first values of what a step updates, the other inputs)."""
    inputs, _ = make_inputs(path, seed=3)
    updated = {o.name.removesuffix("_new") for o in opened(path).get_outputs() if "_new" in o.name}
    if not updated:  # gradients alone: the parameters stay
        updated = {
            name for name, array in inputs.items() if array.dtype == np.float32 and array.ndim
        }
    kept = {name: array for name, array in inputs.items() if name in updated}
    return kept, {name: array for name, array in inputs.items() if name not in updated}


def by_hand(session: ort.InferenceSession, kept: dict[str, Array], rest: dict[str, Array]):
    """The results of each step, as arrays that are fed by hand give them, and the last values."""
    values, found = dict(kept), []
    names = [output.name for output in session.get_outputs()]
    for step in range(STEPS):
        results = dict(
            zip(names, session.run(names, {**values, **changed(rest, step)}), strict=True)
        )
        values |= {n.removesuffix("_new"): v for n, v in results.items() if n.endswith("_new")}
        found.append({n: v for n, v in results.items() if not n.endswith("_new")})
    return found, values


def changed(rest: dict[str, Array], step: int) -> dict[str, Array]:
    """The feeds of a step: floating-point ones differ in each."""
    more = np.float32(0.01 * step)
    return {n: np.asarray(a + more) if a.dtype == np.float32 else a for n, a in rest.items()}


@pytest.fixture(scope="module", params=PLANS)
def files(request, tmp_path_factory) -> tuple[Path, Path]:
    """A model, and its rewritten file."""
    if request.param == "mlp_adamw":
        request.getfixturevalue("native_library")
    model = ZOO / f"{request.param}.onnx"
    out = tmp_path_factory.mktemp("bound") / "planned.onnx"
    options = PLANS[request.param]
    planner.optimize(model, output=out, verify=False, time_limit_s=0.5, **options)
    return model, out


def test_five_steps_are_those_of_arrays_fed_by_hand(files: tuple[Path, Path]):
    model = files[0]
    kept, rest = start(model)
    wanted, last = by_hand(opened(model), kept, rest)
    for path in files:
        bound = planner.bind(opened(path), kept)
        found = [bound.step(changed(rest, step)) for step in range(STEPS)]
        for mine, theirs in zip(found, wanted, strict=True):
            assert {n: a.tobytes() for n, a in mine.items()} == {
                n: a.tobytes() for n, a in theirs.items()
            }
        assert {n: a.tobytes() for n, a in bound.values().items()} == {
            n: last[n].tobytes() for n in kept
        }


def test_the_first_values_and_all_results_stay_the_callers():
    kept, rest = start(ZOO / "mlp_adamw.onnx")
    before = {name: array.copy() for name, array in kept.items()}
    bound = planner.bind(opened(ZOO / "mlp_adamw.onnx"), kept)
    first = bound.step(rest)["loss"]
    bits, state = first.tobytes(), bound.values()
    kept_bits = {name: array.tobytes() for name, array in state.items()}
    for _ in range(3):
        bound.step(rest)
    assert first.tobytes() == bits
    assert {name: array.tobytes() for name, array in state.items()} == kept_bits
    assert all(np.array_equal(kept[name], array) for name, array in before.items())


def test_two_buffers_each_serve_all_steps():
    kept, rest = start(ZOO / "mlp_adamw.onnx")
    bound = planner.bind(opened(ZOO / "mlp_adamw.onnx"), kept)
    assert set(bound.places.values()) == {"host"}
    seen = set[int]()
    for _ in range(4):
        bound.step(rest)
        seen |= {b.owner.ctypes.data for item in bound._kept.values() for b in item.buffers}
    assert len(seen) == 2 * len(kept)


SIDE = 4


def small(*, fails: bool = False, open_dim: bool = False) -> ort.InferenceSession:
    """w_new = w + x, y = 2 x; fails where `size` has another number of elements than x."""
    dims = ["n", SIDE] if open_dim else [SIDE, SIDE]
    nodes = [
        h.make_node("Add", ["w", "x"], ["w_new"], name="add"),
        h.make_node("Add", ["x", "x"], ["two"], name="two"),
        h.make_node("Reshape", ["two", "size"], ["y"], name="reshape")
        if fails
        else h.make_node("Identity", ["two"], ["y"], name="same"),
    ]
    infos = {name: h.make_tensor_value_info(name, T.FLOAT, dims) for name in ("w", "x", "w_new")}
    inputs = [infos["w"], infos["x"]]
    if fails:
        inputs.append(h.make_tensor_value_info("size", T.INT64, [2]))
    y = h.make_tensor_value_info("y", T.FLOAT, ["a", "b"] if fails else dims)
    graph = h.make_graph(nodes, "small", inputs, [infos["w_new"], y])
    model = h.make_model(graph, opset_imports=[h.make_opsetid("", 18)], ir_version=9)
    return ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])


def ones(rows: int = SIDE) -> Array:
    return np.ones((rows, SIDE), np.float32)


def test_open_dims_have_the_sizes_of_what_is_bound_and_fed():
    bound = planner.bind(small(open_dim=True), {"w": ones(3)})
    for step in range(1, 4):
        assert np.array_equal(bound.step({"x": ones(3)})["y"], 2 * ones(3))
        assert np.array_equal(bound.values()["w"], (1 + step) * ones(3))


def test_after_a_step_that_failed_the_values_are_those_before_it():
    bound = planner.bind(small(fails=True), {"w": ones()})
    good, bad = (np.array([SIDE, SIDE + wrong], np.int64) for wrong in (0, 1))
    bound.step({"x": ones(), "size": good})
    with pytest.raises(ModelError, match="reshape"):
        bound.step({"x": ones(), "size": bad})
    assert np.array_equal(bound.values()["w"], 2 * ones())
    assert np.array_equal(bound.step({"x": ones(), "size": good})["y"], 2 * ones())
    assert np.array_equal(bound.values()["w"], 3 * ones())


def test_values_can_be_set_as_from_a_checkpoint():
    bound = planner.bind(small(), {"w": ones()})
    bound.step({"x": ones()})
    bound.put({"w": 5 * ones()})
    bound.step({"x": ones()})
    assert np.array_equal(bound.values()["w"], 6 * ones())


def test_what_is_not_returned_stays_and_can_be_read():
    bound = planner.bind(small(), {"w": ones()}, results=())
    assert bound.step({"x": 3 * ones()}) == {}
    assert np.array_equal(bound.output("y"), 6 * ones())
    bound.step({"x": ones()})
    assert np.array_equal(bound.output("y"), 2 * ones())
    assert bound.places == {"w": "host", "y": "host"}


def a_bound(**options: object) -> Bound:
    return planner.bind(small(), {"w": ones()}, **options)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (lambda: planner.bind(small(), {"W": ones()}), "there is no input 'W'"),
        (lambda: a_bound(updates={"w": "w_next"}), "no output 'w_next'; the closest are 'w_new'"),
        (lambda: a_bound(updates={"x": "y"}), "there is no kept input 'x'"),
        (lambda: a_bound(results=["z"]), "there is no output 'z'"),
        (lambda: planner.bind(small(), {"w": ones(3)}), r"'w' has the shape \[3, 4\]"),
        (lambda: planner.bind(small(), {"w": np.ones((4, 4))}), "'w' is an array of float64"),
        (lambda: a_bound().step({}), "the input 'x' is neither kept nor fed"),
        (lambda: a_bound().step({"x": ones(), "q": ones()}), "there is no input 'q'"),
        (lambda: a_bound().step({"x": ones(), "w": ones()}), r"'w' is kept .* put\("),
        (lambda: a_bound().step({"x": np.ones((4, 4), np.int64)}), "'x' is an array of int64"),
        (lambda: a_bound().output("y"), "there is no output that stays 'y'"),
        (
            lambda: planner.bind(small(open_dim=True), {"w": ones()}, results=()),
            r"'y' has open dims \['n', 4\]",
        ),
        (lambda: a_bound().put({"x": ones()}), "there is no kept input 'x'"),
    ],
)
def test_what_does_not_fit_is_named(asked, said: str):
    with pytest.raises(UsageError, match=said):
        asked()


def test_an_update_of_another_shape_is_named():
    node = h.make_node("ReduceSum", ["w"], ["w_new"], name="sum", keepdims=0)
    infos = [
        h.make_tensor_value_info("w", T.FLOAT, [4]),
        h.make_tensor_value_info("w_new", T.FLOAT, []),
    ]
    graph = h.make_graph([node], "sum", infos[:1], infos[1:])
    model = h.make_model(graph, opset_imports=[h.make_opsetid("", 18)], ir_version=9)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    with pytest.raises(UsageError, match=r"'w_new' .* cannot be the next value of the input 'w'"):
        planner.bind(session, {"w": np.ones(4, np.float32)})


def test_half_types_that_numpy_has_not_are_kept(tmp_path: Path):
    node = h.make_node("Identity", ["w"], ["w_new"], name="same")
    infos = [h.make_tensor_value_info(n, T.BFLOAT16, [4]) for n in ("w", "w_new")]
    graph = h.make_graph([node], "half", infos[:1], infos[1:])
    model = h.make_model(graph, opset_imports=[h.make_opsetid("", 18)], ir_version=9)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    value = np.arange(4).astype(onnx.helper.tensor_dtype_to_np_dtype(T.BFLOAT16))
    bound = planner.bind(session, {"w": value})
    bound.step({})
    assert bound.values()["w"].tobytes() == value.tobytes()

"""Dims of files that others made: -1 and no name, sizes by place, and what is said of those that lack."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto as T
from onnx import helper as h
from onnx import numpy_helper

from planner.errors import ModelError, UsageError
from planner.onnxio.dims import dim_called
from planner.onnxio.load import LoadedModel, load_model, read_model, value_types
from planner.onnxio.positions import Position, dims_of, position_of, shape_dims
from planner.runtime.feeds.inputs import make_inputs
from planner.runtime.optimizers.shapes import runtime_types

Dim = int | str | None


def save(folder: Path, inputs: dict[str, Sequence[Dim]], outputs: Sequence[Dim] | None = None):
    """A model that negates each of its inputs."""
    nodes = [h.make_node("Neg", [name], [f"{name}_out"], name=name) for name in inputs]
    made = [h.make_tensor_value_info(f"{name}_out", T.FLOAT, outputs) for name in inputs]
    read = [h.make_tensor_value_info(name, T.FLOAT, dims) for name, dims in inputs.items()]
    return written(folder, h.make_graph(nodes, "open", read, made))


def written(folder: Path, graph: onnx.GraphProto) -> Path:
    model = h.make_model(graph, opset_imports=[h.make_opsetid("", 18)], ir_version=9)
    path = folder / "model.onnx"
    path.write_bytes(model.SerializeToString())
    return path


def shapes(loaded: LoadedModel) -> dict[str, tuple[int, ...]]:
    types = value_types(loaded.model, loaded.dims)
    return {name: kind.shape for name, kind in types.items()}


def typed(options: list[str]) -> dict[str, int]:
    """The dims of options as they are typed."""
    pairs = list(zip(options[::2], options[1::2], strict=True))
    dims, shapes = ([v for w, v in pairs if w == what] for what in ("--dim", "--shape"))
    return dims_of(dims, shapes)


# -- what is open --------------------------------------------------------------------------------


@pytest.mark.parametrize("unknown", [-1, None])
def test_a_dim_without_a_name_is_called_by_its_place(unknown, tmp_path):
    path = save(tmp_path, {"x": [unknown, 3, unknown], "y": ["batch", unknown]})
    sizes = {"x:0": 2, "x:2": 5, "batch": 7, "y:1": 4}
    loaded = load_model(path, dims=sizes)
    assert loaded.dims == sizes
    assert shapes(loaded) == {
        "x": (2, 3, 5), "y": (7, 4), "x_out": (2, 3, 5), "y_out": (7, 4),
    }  # fmt: skip
    feeds, _ = make_inputs(path, dims=loaded.dims)
    assert {name: array.shape for name, array in feeds.items()} == {"x": (2, 3, 5), "y": (7, 4)}


def test_an_unknown_dim_of_an_output_is_inferred(tmp_path):
    loaded = load_model(save(tmp_path, {"x": [2, 3]}, outputs=[-1, -1]))
    assert loaded.dims == {}
    assert shapes(loaded)["x_out"] == (2, 3)


def test_unknown_dims_are_forgotten_in_bodies_and_of_values_within(tmp_path):
    info = h.make_tensor_value_info("b", T.FLOAT, [-1])
    branch = h.make_graph([h.make_node("Neg", ["a"], ["b"], name="inner")], "branch", [], [info])
    nodes = [
        h.make_node("Abs", ["x"], ["a"], name="a"),
        h.make_node("If", ["c"], ["y"], name="if", then_branch=branch, else_branch=branch),
    ]
    graph = h.make_graph(
        nodes,
        "bodies",
        [h.make_tensor_value_info("x", T.FLOAT, [4]), h.make_tensor_value_info("c", T.BOOL, [])],
        [h.make_tensor_value_info("y", T.FLOAT, [-1])],
        value_info=[h.make_tensor_value_info("a", T.FLOAT, [-1])],
    )
    path = written(tmp_path, graph)
    assert shapes(load_model(path))["y"] == (4,)
    model = read_model(path)
    parts = (model.graph, *model.graph.subgraphs())
    values = [v for part in parts for v in (*part.outputs, *(o for n in part for o in n.outputs))]
    assert len(values) > 4 and all(dim != -1 for v in values for dim in v.shape or ())


def test_an_initializer_that_may_be_overridden_has_its_own_size(tmp_path):
    graph = h.make_graph(
        [h.make_node("Add", ["x", "w"], ["y"], name="add")],
        "old",
        [h.make_tensor_value_info(name, T.FLOAT, [-1]) for name in ("x", "w")],
        [h.make_tensor_value_info("y", T.FLOAT, [-1])],
        [numpy_helper.from_array(np.ones(3, np.float32), "w")],
    )
    loaded = load_model(written(tmp_path, graph), dims={"x:0": 3})
    assert loaded.dims == {"x:0": 3}
    assert shapes(loaded)["w"] == (3,)


def test_onnx_runtime_folds_shapes_of_dims_without_a_name(tmp_path):
    path = save(tmp_path, {"x": [-1, 3], "y": ["batch", 3]})
    loaded = load_model(path, dims={"x:0": 5, "batch": 2})
    found = runtime_types(loaded.model, loaded.dims)
    assert found["x_out"][1] == (5, 3) and found["y_out"][1] == (2, 3)


# -- sizes by place ------------------------------------------------------------------------------


def test_a_place_stands_for_the_name_that_is_there(tmp_path):
    path = save(tmp_path, {"x": ["batch", 3, None], "y": ["batch"]})
    loaded = load_model(path, dims={"x:0": 2, "x:2": 5})
    assert loaded.dims == {"batch": 2, "x:2": 5}
    again = load_model(path, dims={"y:0": 2, "batch": 2, "x:1": 3, "x:2/3": 5})
    assert again.dims == loaded.dims
    by_shape = load_model(path, dims=shape_dims(["x=2x3x5"]))
    assert by_shape.dims == loaded.dims
    assert load_model(path, dims=loaded.dims).dims == loaded.dims
    assert dim_called(loaded.model, "y:0") == "batch" and dim_called(loaded.model, "x:1") == 3


def test_names_with_colons(tmp_path):
    path = save(tmp_path, {"in:0": [None, "n:1"], "n": [4, 3]})
    sizes = {"in:0:0": 2, "n:1": 7}  # the name comes before the place: axis 1 of n is 3
    assert load_model(path, dims=sizes).dims == sizes
    assert load_model(path, dims=shape_dims(["in:0=2x7", "n=4x3"])).dims == sizes


def test_a_name_that_is_the_place_of_a_dim_without_one_is_refused(tmp_path):
    path = save(tmp_path, {"x": ["x:1", None]})
    with pytest.raises(ModelError, match="input 'x' has a dim without a name, whose place 'x:1'"):
        load_model(path, dims={"x:1": 2})


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--shape", "x=2x4x5"], r"--shape x=2x4x5: input 'x' has the shape \[batch, 3, \?\], whose "
                                 r"axis 1 is 3$"),
        (["--shape", "x=2x3"], r"--shape x=2x3: .*'x' has the shape \[batch, 3, \?\], of 3 axes$"),
        (["--shape", "x=2x3x5x1"], r"--shape x=2x3x5x1: .*'x' has the shape \[batch, 3, \?\], of 3"),
        (["--shape", "y=2x3"], r"input 'y' has the shape \[batch\], of 1 axis$"),
        (["--shape", "z=2x3"], r"no input 'z' \(its inputs: x \[batch, 3, \?\], y \[batch\]\)$"),
        (["--dim", "x:7=2"], r"--dim x:7=2: input 'x' has the shape .*, of 3 axes$"),
        (["--dim", "x:1=2"], r"--dim x:1=2: input 'x' .*, whose axis 1 is 3$"),
        (["--dim", "z:1=2"], r"--dim z:1=2: the model has no input 'z'"),
        (["--dim", "x:07=2"], r"--dim x:07=2: input 'x' has the shape .*, of 3 axes$"),
        (["--dim", "z=2"], r"--dim z: the model has no such dim \(its dims: batch, x:2\)$"),
        (["--shape", "x=2x3x5", "--shape", "y=3"],
         "dim 'batch' is given two sizes: 2 by --shape x=2x3x5, 3 by --shape y=3$"),
        (["--shape", "x=2x3x5", "--dim", "batch=4"], "4 by --dim batch=4.* 2 by --shape x=2x3x5$"),
        (["--dim", "x:2=4", "--shape", "x=2x3x5"], "dim 'x:2' .* 4 by --dim x:2=4, 5 by --shape x="),
        (["--shape", "x=0x3x5"], "--shape x=0x3x5: a dim must be at least 1$"),
    ],
)  # fmt: skip
def test_what_contradicts_the_model_is_a_usage_error(options, said, tmp_path):
    path = save(tmp_path, {"x": ["batch", 3, -1], "y": ["batch"]})
    with pytest.raises(UsageError, match=said) as raised:
        load_model(path, dims=typed(options))
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        (["x"], "--shape 'x' is not INPUT=AxBxC"),
        (["=1x2"], "is not INPUT="),
        (["x="], "is not INPUT="),
        (["x=1xx2"], "is not INPUT="),
        (["x=1x-1"], "is not INPUT="),
        (["x=1,3"], "is not INPUT="),
        (["x=1x2", "x=1x3"], "--shape x is given twice, as 1x2 and as 1x3"),
    ],
)
def test_what_is_no_shape(texts, said):
    with pytest.raises(UsageError, match=said):
        shape_dims(texts)


def test_shapes_are_dims_by_place():
    assert shape_dims(["a=b=1x3", " y =07", "y=7"]) == {"a=b:0/2": 1, "a=b:1/2": 3, "y:0/1": 7}
    assert position_of("x:0:2/4") == Position(input="x:0", axis=2, rank=4)
    for text in ("x", "x:", ":0", "x:y", "x:-1", "x:0/", "x:0/y", "x:1.0"):
        assert position_of(text) is None


# -- what lacks ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("inputs", "given", "named", "options"),
    [
        (
            {"x": ["batch", 3, None, -1], "y": ["batch"]},
            {},
            "batch (x, y), x:2, x:3",
            "--dim batch=1 --shape x=1x3x224x224",
        ),
        (
            {"x": ["batch", 3, None, -1], "y": ["batch"]},
            {"y:0": 8, "x:3": 64},
            "x:2",
            "--shape x=8x3x224x64",
        ),
        (
            {"ids": ["my batch", "seq_len"], "mask": ["my batch", "past_length"], "z": [-1, -1]},
            {},
            "my batch (ids, mask), seq_len (ids), past_length (mask), z:0, z:1",
            "--dim 'my batch'=1 --dim seq_len=128 --dim past_length=128 --shape z=1x1",
        ),
        ({"x": [-1, "Height", "width", 3]}, {}, "x:0, Height (x), width (x)",
         "--dim Height=224 --dim width=224 --shape x=1x224x224x3"),
        ({"x": [None, None, None, 3]}, {}, "x:0, x:1, x:2", "--shape x=1x224x224x3"),
        ({"x": [-1, -1, -1, -1]}, {}, "x:0, x:1, x:2, x:3", "--shape x=1x3x224x224"),
        ({"x": ["n", 64, "a", "b"]}, {}, "n (x), a (x), b (x)", "--dim n=1 --dim a=1 --dim b=1"),
        ({"in x:0": [None, 0]}, {}, "in x:0:0", "--shape 'in x:0'=1x0"),
        ({f"i{k}": ["n"] for k in range(7)}, {}, "n (i0, i1, i2, i3 and 3 more)", "--dim n=1"),
    ],
)  # fmt: skip
def test_all_that_lacks_is_named_with_options_to_paste(inputs, given, named, options, tmp_path):
    path = save(tmp_path, inputs)
    with pytest.raises(ModelError) as raised:
        load_model(path, dims=given)
    message = f"{path} has dims without a size: {named}; give them, for example with {options}"
    assert str(raised.value) == message
    pasted = typed(shlex.split(options))
    assert load_model(path, dims={**given, **pasted}).dims


def test_an_input_without_a_shape_is_named_before_dims(tmp_path):
    path = save(tmp_path, {"x": ["batch"]})
    model = onnx.load_model_from_string(path.read_bytes())
    model.graph.input[0].type.tensor_type.ClearField("shape")
    path.write_bytes(model.SerializeToString())
    with pytest.raises(ModelError, match="input 'x' has no shape"):
        load_model(path, dims={"x:0": 2})

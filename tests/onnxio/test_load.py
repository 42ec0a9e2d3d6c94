"""Opening a model: what is read, what is bound, what is refused."""

from __future__ import annotations

import hashlib
import os
import resource
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto as T
from onnx import helper as h
from onnx import numpy_helper

from planner.errors import ModelError, UsageError
from planner.onnxio.dims import symbolic_dims
from planner.onnxio.load import inferred_types, load_model, value_types
from planner.onnxio.names import name_nodes

GIB = 1 << 30


def info(name: str, *shape: int | str, dtype: int = T.FLOAT) -> onnx.ValueInfoProto:
    return h.make_tensor_value_info(name, dtype, shape)


def save(folder: Path, nodes, inputs, outputs, initializers=(), **options) -> Path:
    graph = h.make_graph(nodes, "loaded", inputs, outputs, list(initializers))
    imports = [h.make_opsetid("", 18), *options.pop("imports", [])]
    model = h.make_model(graph, opset_imports=imports, ir_version=9, **options)
    path = folder / "model.onnx"
    path.write_bytes(model.SerializeToString())
    return path


def external(name: str, shape: list[int], *, offset: int = 0) -> onnx.TensorProto:
    tensor = T(name=name, data_type=T.FLOAT, dims=shape, data_location=T.EXTERNAL)
    fields = {"location": "weights.bin", "offset": offset, "length": 4 * int(np.prod(shape))}
    for key, value in fields.items():
        tensor.external_data.add(key=key, value=str(value))
    return tensor


def test_external_data_is_never_read(tmp_path):
    side = 24576  # 2.25 GiB of float32
    path = save(
        tmp_path,
        [h.make_node("MatMul", ["x", "w"], ["y"], name="matmul")],
        [info("x", 1, side)],
        [info("y", 1, side)],
        [external("w", [side, side])],
    )
    data = tmp_path / "weights.bin"
    with data.open("wb") as file:
        file.truncate(side * side * 4)
    accessed, before = data.stat().st_atime_ns, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    loaded = load_model(path)
    types = value_types(loaded.model, {})
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    assert loaded.has_external_data
    assert types["w"].bytes == side * side * 4 > 2 * GIB
    assert data.stat().st_atime_ns == accessed
    assert data.stat().st_blocks == 0
    assert grown < GIB / 4
    assert isinstance(loaded.model.graph.initializers["w"].const_value, ir.ExternalTensor)


def test_the_digest_is_that_of_the_file(tmp_path):
    path = save(
        tmp_path, [h.make_node("Neg", ["x"], ["y"], name="n")], [info("x", 4)], [info("y", 4)]
    )
    loaded = load_model(path)
    assert loaded.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    assert not loaded.has_external_data


def test_external_data_is_found_from_any_working_folder(tmp_path, monkeypatch):
    path = save(
        tmp_path,
        [h.make_node("Add", ["x", "w"], ["y"], name="add")],
        [info("x", 4)],
        [info("y", 4)],
        [external("w", [4], offset=8)],
    )
    (tmp_path / "weights.bin").write_bytes(np.arange(6, dtype=np.float32).tobytes())
    monkeypatch.chdir(tmp_path.parent)
    loaded = load_model(Path(os.path.relpath(path)))
    value = loaded.model.graph.initializers["w"].const_value
    assert value is not None
    assert value.numpy().tolist() == [2, 3, 4, 5]


# -- dims ----------------------------------------------------------------------------------------


@pytest.fixture
def symbolic(tmp_path) -> Path:
    nodes = [
        h.make_node("MatMul", ["x", "w"], ["a"], name="a"),
        h.make_node("Concat", ["a", "a"], ["b"], name="b", axis=0),
        h.make_node("Transpose", ["b"], ["y"], name="y", perm=[1, 0]),
    ]
    return save(
        tmp_path,
        nodes,
        [info("x", "batch", "width"), info("w", "width", 8)],
        [info("y", 8, "twice")],
    )


def test_symbolic_dims_are_bound_everywhere(symbolic):
    loaded = load_model(symbolic, dims={"batch": 3, "width": 5})
    types = value_types(loaded.model, loaded.dims)
    shapes = {name: kind.shape for name, kind in types.items()}
    assert shapes == {"x": (3, 5), "w": (5, 8), "a": (3, 8), "b": (6, 8), "y": (8, 6)}
    assert loaded.dims == {"batch": 3, "width": 5}


def test_the_model_keeps_its_symbolic_dims(symbolic):
    loaded = load_model(symbolic, dims={"batch": 3, "width": 5})
    inferred_types(loaded.model, loaded.dims)
    assert symbolic_dims(loaded.model) == {"batch": ["x"], "width": ["x", "w"]}
    assert [str(d) for d in loaded.model.graph.outputs[0].shape or ()] == ["8", "twice"]


def test_a_dim_left_open_is_named(symbolic):
    with pytest.raises(
        ModelError, match=r"dims without a size: width \(x, w\); give them,.* --dim width=224$"
    ):
        load_model(symbolic, dims={"batch": 3})


@pytest.mark.parametrize("dims", [{"depth": 3}, {"batch": 0}, {"batch": -2}])
def test_a_dim_that_cannot_be_is_a_usage_error(symbolic, dims):
    with pytest.raises(UsageError, match="--dim"):
        load_model(symbolic, dims={"width": 5, **dims})


def test_a_value_of_unknown_shape_is_named_with_its_node(tmp_path):
    nodes = [
        h.make_node("NonZero", ["x"], ["n"], name="find"),
        h.make_node("Cast", ["n"], ["y"], name="cast", to=T.FLOAT),
    ]
    path = save(tmp_path, nodes, [info("x", 4)], [info("y", 1, "found")])
    with pytest.raises(ModelError, match=r"shape of tensor 'n' \(output of node 'find', NonZero\)"):
        value_types(load_model(path).model, {})


# -- functions and names -------------------------------------------------------------------------


def test_functions_are_inlined(tmp_path):
    function = h.make_function(
        "local",
        "Twice",
        ["a"],
        ["b"],
        [h.make_node("Add", ["a", "a"], ["b"], name="add")],
        [h.make_opsetid("", 18)],
    )
    nodes = [
        h.make_node("Twice", ["x"], ["z"], name="one", domain="local"),
        h.make_node("Twice", ["z"], ["y"], name="two", domain="local"),
    ]
    path = save(
        tmp_path,
        nodes,
        [info("x", 4)],
        [info("y", 4)],
        functions=[function],
        imports=[h.make_opsetid("local", 1)],
    )
    model = load_model(path).model
    assert [n.op_type for n in model.graph] == ["Add", "Add"]
    assert not model.functions
    types = value_types(model, {})
    assert {kind.shape for kind in types.values()} == {(4,)}


def test_every_node_gets_a_name_of_its_own():
    def node(name: str, source: str, target: str) -> onnx.NodeProto:
        return h.make_node("Neg", [source], [target], name=name)

    graph = h.make_graph(
        [node("", "x", "a"), node("n", "a", "b"), node("n", "b", "c"), node("n_1", "c", "y")],
        "names",
        [info("x", 4)],
        [info("y", 4)],
    )
    model = ir.from_proto(h.make_model(graph, opset_imports=[h.make_opsetid("", 18)]))
    assert name_nodes(model) == 2
    names = [str(n.name) for n in model.graph]
    assert len(set(names)) == 4
    assert (names[1], names[3]) == ("n", "n_1")
    assert name_nodes(model) == 0


def test_an_initializer_keeps_its_data(tmp_path):
    weight = numpy_helper.from_array(np.arange(4, dtype=np.float32), "w")
    path = save(
        tmp_path,
        [h.make_node("Add", ["x", "w"], ["y"], name="add")],
        [info("x", 4)],
        [info("y", 4)],
        [weight],
    )
    value = load_model(path).model.graph.initializers["w"].const_value
    assert value is not None
    assert value.numpy().tolist() == [0, 1, 2, 3]

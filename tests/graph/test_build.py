"""What the graph says of each tensor and operation: bytes, category, aliases, effects."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto as T
from onnx import helper as h
from onnx import numpy_helper

from planner.graph.build import build_graph
from planner.graph.categories import gradient_of, input_categories, updated_value_of
from planner.graph.liveness import timeline
from planner.graph.marks import PLANNER_ATTRIBUTE
from planner.graph.model import Category, Role, TrainingGraph
from planner.graph.schedule import default_order
from planner.onnxio.load import value_types
from planner.runtime.optimizers.shapes import unsized_values
from tests.graphs import graph_of

C = Category


def model(nodes, inputs, outputs, initializers=(), opset=21) -> onnx.ModelProto:
    graph = h.make_graph(nodes, "built", inputs, outputs, list(initializers))
    return h.make_model(graph, opset_imports=[h.make_opsetid("", opset)], ir_version=10)


def info(name: str, *shape: int | str, dtype: int = T.FLOAT) -> onnx.ValueInfoProto:
    return h.make_tensor_value_info(name, dtype, shape)


def built(*args, **options) -> TrainingGraph:
    return graph_of(model(*args, **options))[1]


def node(kind: str, inputs: list[str], outputs: list[str], **attributes) -> onnx.NodeProto:
    return h.make_node(kind, inputs, outputs, name=outputs[0], **attributes)


# -- categories ----------------------------------------------------------------------------------


def training_step() -> TrainingGraph:
    """loss = mean(tanh(x·w)²); the gradient of w; one step of momentum."""
    nodes = [
        node("MatMul", ["x", "w"], ["z"]),
        node("Tanh", ["z"], ["a"]),
        node("Mul", ["a", "a"], ["s"]),
        node("ReduceMean", ["s"], ["loss"], keepdims=0),
        node("Mul", ["a", "two"], ["da"]),
        node("Transpose", ["x"], ["xt"], perm=[1, 0]),
        node("MatMul", ["xt", "da"], ["w_grad"]),
        node("Mul", ["w_m", "decay"], ["scaled"]),
        node("Add", ["scaled", "w_grad"], ["w_m_new"]),
        node("Sub", ["w", "w_m_new"], ["w_new"]),
    ]
    inputs = [info("x", 4, 8), info("w", 8, 8), info("w_m", 8, 8)]
    outputs = [info("loss"), info("w_grad", 8, 8), info("w_m_new", 8, 8), info("w_new", 8, 8)]
    constants = [
        numpy_helper.from_array(np.float32(2.0), "two"),
        numpy_helper.from_array(np.float32(0.9), "decay"),
    ]
    return built(nodes, inputs, outputs, constants)


@pytest.mark.parametrize(
    ("tensor", "category"),
    [
        ("x", C.INPUT),
        ("w", C.PARAMETER),
        ("w_m", C.OPTIMIZER_STATE),
        ("two", C.CONSTANT),
        ("z", C.TEMPORARY),
        ("a", C.ACTIVATION),
        ("s", C.TEMPORARY),
        ("loss", C.OUTPUT),
        ("da", C.GRADIENT),
        ("w_grad", C.GRADIENT),
        ("w_new", C.OUTPUT),
        ("w_m_new", C.OUTPUT),
    ],
)
def test_category(tensor, category):
    assert training_step().tensor_named(tensor).category is category


def test_an_activation_may_be_read_through_a_view():
    nodes = [
        node("MatMul", ["x", "w"], ["z"]),
        node("Tanh", ["z"], ["a"]),
        node("Reshape", ["a", "flat"], ["f"]),
        node("Mul", ["f", "f"], ["s"]),
        node("ReduceMean", ["s"], ["loss"], keepdims=0),
        node("Reshape", ["f", "square"], ["g"]),
        node("Transpose", ["x"], ["xt"], perm=[1, 0]),
        node("MatMul", ["xt", "g"], ["w_grad"]),
    ]
    shapes = [
        numpy_helper.from_array(np.array(shape, np.int64), name)
        for name, shape in (("flat", [32]), ("square", [4, 8]))
    ]
    graph = built(
        nodes, [info("x", 4, 8), info("w", 8, 8)], [info("loss"), info("w_grad", 8, 8)], shapes
    )
    assert graph.tensor_named("a").category is C.ACTIVATION
    assert graph.tensor_named("z").category is C.TEMPORARY


def test_a_weight_that_is_an_initializer_is_a_parameter():
    weight = numpy_helper.from_array(np.ones((8, 8), np.float32), "w")
    count = numpy_helper.from_array(np.ones((2,), np.int64), "n")
    graph = built(
        [node("MatMul", ["x", "w"], ["z"]), node("Expand", ["z", "n"], ["y"])],
        [info("x", 8, 8)],
        [info("y", 8, 8)],
        [weight, count],
    )
    assert graph.tensor_named("w").category is C.PARAMETER
    assert graph.tensor_named("n").category is C.CONSTANT
    assert graph.tensor_named("w").is_persistent


@pytest.mark.parametrize(
    ("name", "base"),
    [("w_grad", "w"), ("a.b.grad", "a.b"), ("grad_w", "w"), ("w", None), ("gradual", None)],
)
def test_names_of_gradients(name, base):
    assert gradient_of(name) == base


@pytest.mark.parametrize(("name", "base"), [("w_new", "w"), ("new_w", "w"), ("renew", None)])
def test_names_of_updated_values(name, base):
    assert updated_value_of(name) == base


def test_state_belongs_to_a_parameter_of_the_model():
    inputs = ["w", "w.exp_avg", "other_m", "x"]
    outputs = ["w_new", "w.exp_avg_new", "other_m_new", "w_grad"]
    found = input_categories(inputs, outputs)
    assert found == {
        "w": C.PARAMETER,
        "w.exp_avg": C.OPTIMIZER_STATE,
        "other_m": C.PARAMETER,  # nothing named `other` is updated
        "x": C.INPUT,
    }


# -- sizes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dtype", "shape", "size"),
    [
        (T.FLOAT, (3, 5), 60),
        (T.FLOAT, (), 4),
        (T.FLOAT, (0, 5), 0),
        (T.DOUBLE, (3,), 24),
        (T.FLOAT16, (3,), 6),
        (T.BFLOAT16, (3,), 6),
        (T.BOOL, (3,), 3),
        (T.INT4, (3,), 2),
        (T.UINT4, (4, 2), 4),
        (T.FLOAT8E4M3FN, (5,), 5),
        (T.INT64, (1,), 8),
    ],
)
def test_bytes(dtype, shape, size):
    graph = built(
        [h.make_node("Identity", ["x"], ["y"], name="y")],
        [info("x", *shape, dtype=dtype)],
        [info("y", *shape, dtype=dtype)],
    )
    assert graph.tensor_named("x").bytes == size
    assert graph.tensor_named("y").bytes == size


def test_empty_and_scalar_tensors_have_a_timeline():
    graph = built(
        [
            node("Neg", ["e"], ["a"]),
            node("Concat", ["a", "x"], ["b"], axis=0),
            node("ReduceSum", ["b"], ["c"], keepdims=0),
            node("Neg", ["c"], ["y"]),
        ],
        [info("e", 0), info("x", 4)],
        [info("y")],
    )
    line = timeline(graph, default_order(graph))
    assert line.live_bytes.tolist() == [16, 16 + 16, 16 + 16 + 4, 16 + 4 + 4]


# -- storage -------------------------------------------------------------------------------------


def test_a_chain_of_views_shares_one_buffer():
    shape = numpy_helper.from_array(np.array([4, 4], np.int64), "shape")
    axes = numpy_helper.from_array(np.array([0], np.int64), "axes")
    graph = built(
        [
            node("Neg", ["x"], ["a"]),
            node("Reshape", ["a", "shape"], ["b"]),
            node("Unsqueeze", ["b", "axes"], ["c"]),
            node("Neg", ["c"], ["y"]),
        ],
        [info("x", 16)],
        [info("y", 1, 4, 4)],
        [shape, axes],
    )
    a = graph.tensor_named("a")
    assert {graph.tensor_named(n).buffer for n in "abc"} == {a.id}
    assert [op.is_view for op in graph.operations] == [False, True, True, False]


def test_a_view_of_a_graph_input_is_persistent_storage():
    shape = numpy_helper.from_array(np.array([4, 4], np.int64), "shape")
    graph = built(
        [node("Reshape", ["x", "shape"], ["v"]), node("Relu", ["v"], ["y"])],
        [info("x", 16)],
        [info("y", 4, 4)],
        [shape],
    )
    assert graph.tensor_named("v").buffer == graph.tensor_named("x").id
    assert not graph.operations[1].inplace  # never over an input of the graph
    line = timeline(graph, default_order(graph))
    assert line.live_bytes.tolist() == [80, 80 + 64]


def test_in_place_needs_one_shape_and_size():
    graph = built(
        [
            node("Neg", ["x"], ["a"]),
            node("Relu", ["a"], ["b"]),
            node("Cast", ["b"], ["c"], to=T.DOUBLE),
            node("Cast", ["c"], ["d"], to=T.INT64),
            node("Add", ["d", "d"], ["y"]),
        ],
        [info("x", 16)],
        [info("y", 16, dtype=T.INT64)],
    )
    pairs = {op.name: len(op.inplace) for op in graph.operations}
    assert pairs == {"a": 0, "b": 1, "c": 0, "d": 1, "y": 0}


def test_consumers_are_listed_once():
    graph = built(
        [node("Mul", ["x", "x"], ["a"]), node("Add", ["a", "a"], ["y"])],
        [info("x", 4)],
        [info("y", 4)],
    )
    assert graph.tensor_named("x").consumers == (0,)
    assert graph.tensor_named("a").consumers == (1,)
    assert graph.tensor_named("a").producer == 0


def test_absent_optional_inputs_and_outputs_are_left_out():
    top = numpy_helper.from_array(np.float32(1.0), "top")
    graph = built(
        [
            h.make_node("Clip", ["x", "", "top"], ["a"], name="clip"),
            h.make_node("TopK", ["a", "k"], ["", "i"], name="topk"),
        ],
        [info("x", 4)],
        [info("i", 2, dtype=T.INT64)],
        [top, numpy_helper.from_array(np.array([2], np.int64), "k")],
    )
    clip, topk = graph.operations
    assert [graph.tensors[t].name for t in clip.inputs] == ["x", "top"]
    assert [graph.tensors[t].name for t in topk.outputs] == ["i"]


# -- effects -------------------------------------------------------------------------------------


def dropout(training: bool | None) -> TrainingGraph:
    inputs = ["x", "", "mode"] if training is not None else ["x"]
    mode = numpy_helper.from_array(np.bool_(bool(training)), "mode")
    return built(
        [h.make_node("Dropout", inputs, ["y"], name="drop")],
        [info("x", 4)],
        [info("y", 4)],
        [mode] if training is not None else [],
    )


def test_dropout_may_run_again_only_where_it_does_nothing():
    assert dropout(None).operations[0].recomputable
    assert dropout(False).operations[0].recomputable
    training = dropout(True).operations[0]
    assert not training.recomputable
    assert "random" in training.why_not


def test_dropout_whose_mode_is_an_input_is_taken_for_training():
    graph = built(
        [h.make_node("Dropout", ["x", "", "mode"], ["y"], name="drop")],
        [info("x", 4), info("mode", dtype=T.BOOL)],
        [info("y", 4)],
    )
    assert not graph.operations[0].recomputable


def test_a_training_mode_that_a_caller_may_override_is_taken_for_training():
    mode = numpy_helper.from_array(np.bool_(False), "mode")
    graph = built(
        [h.make_node("Dropout", ["x", "", "mode"], ["y"], name="drop")],
        [info("x", 4), info("mode", dtype=T.BOOL)],
        [info("y", 4)],
        [mode],
    )
    assert not graph.operations[0].recomputable


@pytest.mark.parametrize("kind", ["RandomNormalLike", "RandomUniformLike", "Bernoulli"])
def test_random_numbers_are_drawn_once(kind):
    graph = built([node(kind, ["x"], ["y"])], [info("x", 4)], [info("y", 4)])
    assert not graph.operations[0].recomputable
    assert kind in graph.operations[0].why_not


def test_an_operator_of_an_unknown_domain_runs_once():
    nodes = [h.make_node("Mystery", ["x"], ["y"], name="m", domain="com.example")]
    proto = model(nodes, [info("x", 4)], [info("y", 4)])
    proto.opset_import.append(h.make_opsetid("com.example", 1))
    proto.graph.value_info.append(info("y", 4))
    (op,) = graph_of(proto)[1].operations
    assert not op.recomputable
    assert "com.example" in op.why_not


def test_nodes_of_planner_are_known_by_their_attribute():
    nodes = [
        h.make_node("Neg", ["x"], ["a"], name="a"),
        h.make_node("Neg", ["x"], ["b"], name="b", **{PLANNER_ATTRIBUTE: "recompute:1"}),
        h.make_node("Add", ["a", "b"], ["y"], name="y"),
    ]
    graph = built(nodes, [info("x", 4)], [info("y", 4)])
    roles = [op.role for op in graph.operations]
    assert roles == [Role.ORIGINAL, Role.RECOMPUTE, Role.ORIGINAL]


def test_a_foreign_value_of_planner_s_attribute_is_no_role():
    nodes = [h.make_node("Neg", ["x"], ["y"], name="y", **{PLANNER_ATTRIBUTE: "mine"})]
    graph = built(nodes, [info("x", 4)], [info("y", 4)])
    assert graph.operations[0].role is Role.ORIGINAL


# -- shapes that are known only at run time --------------------------------------------------------


def test_what_onnx_runtime_learns_as_it_runs_is_not_written_in_place() -> None:
    """`z` has the batch's size, but its shape is computed: ONNX Runtime cannot compare it."""
    nodes = [
        node("Shape", ["x"], ["s"]),
        node("ConstantOfShape", ["s"], ["z"]),
        node("Relu", ["z"], ["r"]),
        node("Tanh", ["x"], ["a"]),
        node("Relu", ["a"], ["b"]),
        node("Add", ["r", "b"], ["y"]),
    ]
    shape = ("batch", 8)
    proto = model(nodes, [info("x", *shape)], [info("y", *shape)])
    loaded = ir.from_proto(proto)
    types = value_types(loaded, {"batch": 4})
    unsized = unsized_values(loaded, types)
    assert unsized == {"z", "r"}
    graph = build_graph(loaded, types, unsized=unsized)
    by_name = {op.name: op for op in graph.operations}
    assert by_name["b"].inplace
    assert not by_name["r"].inplace
    assert build_graph(loaded, types).operations[2].inplace, "where all shapes are known"


def test_a_static_model_has_no_such_values() -> None:
    nodes = [node("Shape", ["x"], ["s"]), node("ConstantOfShape", ["s"], ["y"])]
    loaded = ir.from_proto(model(nodes, [info("x", 4, 8)], [info("y", 4, 8)]))
    assert unsized_values(loaded, value_types(loaded, {})) == set()


# -- artifacts of onnxruntime-training -----------------------------------------------------------


def accumulated() -> TrainingGraph:
    """The gradient of w, added to its accumulation buffer; batch statistics written over their own."""
    ms = {"domain": "com.microsoft"}
    statistics = ["x4", "scale", "shift", "mean", "variance"]
    nodes = [
        node("BatchNormInternal", statistics, ["y4", "mean_out", "var_out", "sm", "sv"], **ms),
        node("ReduceMean", ["y4"], ["loss"], keepdims=0),
        node("Mul", ["w", "loss"], ["w_grad"]),
        node(
            "InPlaceAccumulatorV2",
            ["w_grad.accumulation.buffer", "w_grad", "lazy_reset_grad"],
            ["w_grad.accumulation.out"],
            **ms,
        ),
    ]
    vectors = [info(name, 8) for name in statistics[1:]]
    inputs = [info("x4", 2, 8, 4, 4), *vectors, info("w", 6, 6)]
    inputs += [info("w_grad.accumulation.buffer", 6, 6), info("lazy_reset_grad", 1, dtype=T.BOOL)]
    outputs = [info("loss"), info("w_grad.accumulation.out", 1, dtype=T.BOOL)]
    return built(nodes, inputs, outputs)


def test_accumulation_buffers_are_gradients_and_what_they_belong_to_parameters() -> None:
    graph = accumulated()
    category = {t.name: t.category for t in graph.tensors}
    assert category["w"] is C.PARAMETER
    assert category["w_grad.accumulation.buffer"] is C.GRADIENT
    assert category["lazy_reset_grad"] is C.INPUT
    assert category["y4"] is not C.GRADIENT


def test_running_statistics_share_the_buffers_that_they_are_written_over() -> None:
    graph = accumulated()
    for output, source in (("mean_out", "mean"), ("var_out", "variance")):
        assert graph.tensor_named(output).buffer == graph.tensor_named(source).id
    norm, _, _, accumulator = graph.operations
    assert not norm.is_view
    assert norm.scratch == (graph.tensor_named("mean").id, graph.tensor_named("variance").id)
    assert norm.recomputable and not accumulator.recomputable
    assert "updates state" in accumulator.why_not
    fixed = sum(t.bytes for t in graph.tensors if t.is_persistent)
    own = sum(t.bytes for t in graph.tensors if t.producer == norm.id and t.buffer == t.id)
    assert timeline(graph, default_order(graph)).live_bytes[0] == fixed + own

"""The runs of a step add up to one run on the whole batch, on ONNX Runtime, or are refused by name."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from planner.errors import ModelError, UsageError
from planner.micro.kinds import MEAN, SUM
from tests.micro.nets import (
    IGNORED,
    Graph,
    Mlp,
    assert_same,
    divided,
    feeds_of,
    in_runs,
    outputs,
    session_of,
    step_in_runs,
)

SIDE = 6
_PER_SAMPLE = ("Tanh", "Sigmoid", "Relu", "Add", "Mul", "MatMul", "Softmax", "Transposed", "Rows")
_TOTALS = ("outer", "sum", "mean", "rows", "scaled")
_BEHIND = ("norm", "clip", "update", "both")


@pytest.mark.parametrize("update", [False, True])
@pytest.mark.parametrize("loss", ["mean", "sum", "counted"])
def test_gradients_and_updates_of_all_runs_are_those_of_one(
    loss: str, update: bool, tmp_path: Path
) -> None:
    path = Mlp(loss=loss, update=update).save(tmp_path / "mlp.onnx")
    feeds = feeds_of(path, 12)
    expected = outputs(session_of(path), feeds)
    for runs in (2, 3, 12):
        made = in_runs(path, 12, runs, tmp_path / f"run-{runs}")
        assert_same(expected, step_in_runs(made, feeds))


def test_what_is_a_mean_and_what_a_sum_is_told_apart(tmp_path: Path) -> None:
    for loss, kind in (("mean", MEAN), ("sum", SUM), ("counted", "count")):
        found = divided(Mlp(loss=loss).save(tmp_path / f"{loss}.onnx"), 8).kinds
        assert found.of["w0_grad"] == found.of["w1_grad"] == kind
        assert not found.assumed
    assert found.of["count"] == SUM


def test_targets_may_be_ignored_in_other_numbers_in_each_run(tmp_path: Path) -> None:
    path = Mlp(loss="counted", update=True).save(tmp_path / "mlp.onnx")
    feeds = feeds_of(path, 8)
    feeds["y"][[0, 1, 2, 5]] = IGNORED
    expected = outputs(session_of(path), feeds)
    made = in_runs(path, 8, 2, tmp_path / "run")
    assert_same(expected, step_in_runs(made, feeds))


def test_a_mean_over_samples_is_none_over_targets(tmp_path: Path) -> None:
    """Ignored targets count as samples there: each run has as many."""
    path = Mlp(loss="mean").save(tmp_path / "mlp.onnx")
    feeds = feeds_of(path, 8)
    feeds["y"][[0, 1, 2]] = IGNORED
    made = in_runs(path, 8, 4, tmp_path / "run")
    assert_same(outputs(session_of(path), feeds), step_in_runs(made, feeds))


def _random_step(draw: st.DrawFn, path: Path) -> Path:
    """A network that treats each sample by itself, some sums and means over samples, and what follows."""
    g = Graph()
    g.input("x", ["batch", 3, SIDE])
    g.input("w", [SIDE, SIDE])
    values = ["x"]
    for i in range(draw(st.integers(1, 6))):
        kind, a = draw(st.sampled_from(_PER_SAMPLE)), draw(st.sampled_from(values))
        to = f"v{i}"
        if kind in ("Add", "Mul"):
            g.op(kind, a, draw(st.sampled_from(values)), to=to)
        elif kind == "MatMul":
            g.op(kind, a, "w", to=to)
        elif kind == "Softmax":
            g.op(kind, a, to=to, axis=draw(st.sampled_from([-1, 1])))
        elif kind == "Transposed":
            g.op("Transpose", a, to=f"{to}_t", perm=[1, 0, 2])
            g.op("Tanh", f"{to}_t", to=f"{to}_u")
            g.op("Transpose", f"{to}_u", to=to, perm=[1, 0, 2])
        elif kind == "Rows":
            g.const("rows", [-1, SIDE], "int64")
            g.const("samples", [-1, 3, SIDE], "int64")
            g.op("Reshape", a, "rows", to=f"{to}_r")
            g.op("MatMul", f"{to}_r", "w", to=f"{to}_m")
            g.op("Reshape", f"{to}_m", "samples", to=to)
        else:
            g.op(kind, a, to=to)
        values.append(to)
    totals = []
    g.const("rows", [-1, SIDE], "int64")
    g.const("third", 1 / 3, "float32")
    g.const("axes", [0], "int64")
    for i in range(draw(st.integers(1, 4))):
        kind, a = draw(st.sampled_from(_TOTALS)), draw(st.sampled_from(values))
        to = f"t{i}"
        if kind == "outer":
            g.op("Reshape", a, "rows", to=f"{to}_a")
            g.op("Reshape", draw(st.sampled_from(values)), "rows", to=f"{to}_b")
            g.op("Transpose", f"{to}_a", to=f"{to}_t")
            g.op("MatMul", f"{to}_t", f"{to}_b", to=to)
        elif kind == "rows":
            g.op("Reshape", a, "rows", to=f"{to}_a")
            g.op("ReduceSum", f"{to}_a", "axes", to=to, keepdims=0)
        elif kind == "scaled":
            g.op("ReduceSum", a, "axes", to=f"{to}_s", keepdims=0)
            g.op("Shape", "x", to=f"{to}_n", start=0, end=1)
            g.cast(f"{to}_n", f"{to}_f")
            g.op("Div", f"{to}_s", f"{to}_f", to=to)
        elif kind == "sum":
            g.op("ReduceSum", a, "axes", to=f"{to}_s", keepdims=0)
            g.op("Mul", f"{to}_s", "third", to=to)
        else:
            g.op("ReduceMean", a, to=to, keepdims=0)
        totals.append(to)
        g.output(to)
    for i in range(draw(st.integers(0, 3))):
        kind, a = draw(st.sampled_from(_BEHIND)), draw(st.sampled_from(totals))
        to = f"b{i}"
        if kind == "norm":
            g.op("ReduceL2", a, to=to, keepdims=0)
        elif kind == "clip":
            g.op("ReduceL2", a, to=f"{to}_l", keepdims=0)
            g.op("Min", f"{to}_l", "third", to=f"{to}_m")
            g.op("Mul", a, f"{to}_m", to=to)
        elif kind == "update":
            g.op("Tanh", a, to=f"{to}_t")
            g.op("ReduceSum", f"{to}_t", to=f"{to}_s", keepdims=0)
            g.op("Sub", "w", f"{to}_s", to=to)
        else:
            g.op("ReduceSum", a, to=f"{to}_p", keepdims=0)
            g.op("ReduceMax", draw(st.sampled_from(totals)), to=f"{to}_q", keepdims=0)
            g.op("Mul", f"{to}_p", f"{to}_q", to=to)
        g.output(to)
    if draw(st.booleans()):
        g.output(values[-1]) if values[-1] != "x" else None
    return g.save(path)


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_totals_of_random_networks_add_up(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("random")
    path = _random_step(data.draw, folder / "step.onnx")
    batch, runs = data.draw(st.sampled_from([(4, 2), (6, 3), (8, 2), (5, 5)]))
    feeds = feeds_of(path, batch, data.draw(st.integers(0, 99)))
    made = in_runs(path, batch, runs, folder / "run")
    onnx.checker.check_model(str(made.request.model), full_check=True)
    assert_same(outputs(session_of(path), feeds), step_in_runs(made, feeds), share=1e-3)


# -- what is refused ----------------------------------------------------------------------------


def _reduced(path: Path, kind: str) -> Path:
    g = Graph()
    g.input("x", ["batch", SIDE])
    if kind == "max":
        g.op("ReduceMax", "x", to="t", axes=[0], keepdims=0)
    elif kind == "pairs":
        g.op("Transpose", "x", to="x_t")
        g.op("MatMul", "x", "x_t", to="similar")
        g.op("Exp", "similar", to="e")
        g.op("ReduceSum", "e", to="t", keepdims=0)
    elif kind == "softmax":
        g.op("Softmax", "x", to="s", axis=0)
        g.op("Mul", "s", "x", to="p")
        g.op("ReduceSum", "p", to="t", keepdims=0)
    elif kind == "centred":
        g.op("ReduceMean", "x", to="mean", axes=[0], keepdims=0)
        g.op("Sub", "x", "mean", to="c")
        g.op("Mul", "c", "c", to="cc")
        g.op("ReduceSum", "cc", to="t", keepdims=0)
    elif kind == "expanded":
        g.op("ReduceMean", "x", to="mean", axes=[0], keepdims=1)
        g.op("Shape", "x", to="shape")
        g.op("Expand", "mean", "shape", to="e")
        g.op("Mul", "x", "e", to="p")
        g.op("ReduceSum", "p", to="t", keepdims=0)
    elif kind == "first":
        g.const("at", 0, "int64")
        g.op("Gather", "x", "at", to="f", axis=0)
        g.op("ReduceSum", "f", to="t", keepdims=0)
    elif kind == "turned":  # samples are mixed by an operator that is not known to do so
        g.const("at", [-1], "int64")
        g.const("end", [-9999], "int64")
        g.const("axis", [0], "int64")
        g.op("Slice", "x", "at", "end", "axis", "at", to="flipped")
        g.op("Mul", "x", "flipped", to="p")
        g.op("ReduceSum", "p", to="t", keepdims=0)
    elif kind == "size":
        g.op("ReduceSum", "x", to="s", keepdims=0)
        g.op("Tanh", "s", to="u")
        g.op("Size", "x", to="n")
        g.cast("n", "m")
        g.op("Mul", "u", "m", to="t")
    g.output("t")
    return g.save(path)


@pytest.mark.parametrize(
    ("kind", "node"),
    [
        ("max", "ReduceMax:t"),
        ("pairs", "MatMul:similar"),
        ("softmax", "Softmax:s"),
        ("centred", "Sub:c"),
        ("expanded", "Expand:e"),
        ("first", "Gather:f"),
        ("turned", "Slice:flipped"),
        ("size", "Cast:m"),
    ],
)
def test_what_does_not_add_up_is_refused_by_name(kind: str, node: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=f"node '{node}'.*leave --micro-batch out"):
        divided(_reduced(tmp_path / "net.onnx", kind), 8)


def test_batch_statistics_are_refused_by_the_node_that_normalizes(tmp_path: Path) -> None:
    path = Mlp(norm=True).save(tmp_path / "mlp.onnx")
    with pytest.raises(ModelError, match=r"BatchNormalization.*'mean_z'.*ReduceMean.*LayerNorm"):
        divided(path, 8)
    model = onnx.load(path)
    for node in model.graph.node:
        if node.op_type == "BatchNormalization":  # given fixed statistics, as in evaluation mode
            node.input[3], node.input[4] = "s", "s"
    onnx.save(model, path)
    feeds = feeds_of(path, 8)
    made = in_runs(path, 8, 2, tmp_path / "run")
    assert_same(outputs(session_of(path), feeds), step_in_runs(made, feeds))


def test_gradients_of_the_input_are_scaled_and_joined(tmp_path: Path) -> None:
    """A mean over K times as many samples has K times smaller rows."""
    path = Mlp(loss="mean").save(tmp_path / "mlp.onnx")
    model = onnx.load(path)
    model.graph.output.append(onnx.helper.make_tensor_value_info("dz", 1, ["batch", 16]))
    onnx.save(model, path)
    feeds = feeds_of(path, 8)
    made = in_runs(path, 8, 4, tmp_path / "run")
    assert made.batches.per_run == {"dz": 0} and made.batches.scaled == ("dz",)
    assert_same(outputs(session_of(path), feeds), step_in_runs(made, feeds))


def test_the_batch_has_to_be_known_and_to_divide(tmp_path: Path) -> None:
    path = Mlp().save(tmp_path / "mlp.onnx")
    with pytest.raises(UsageError, match=r"--micro-batch 3.*divide it: 1, 2, 4, 8"):
        in_runs(path, 8, 3, tmp_path / "run")
    fixed = Mlp(batch=8).save(tmp_path / "fixed.onnx")
    with pytest.raises(ModelError, match="--dynamic-batch"):
        model = Mlp(batch=8).save(fixed)
        from planner.micro.batch import batch_of
        from planner.onnxio.load import load_model

        batch_of(load_model(model))


def test_nothing_to_add_up_is_said(tmp_path: Path) -> None:
    g = Graph()
    g.input("x", ["batch", SIDE])
    g.op("Tanh", "x", to="t")
    g.output("t")
    with pytest.raises(ModelError, match="sums nothing up over its batch"):
        divided(g.save(tmp_path / "net.onnx"), 8)


def test_a_gradient_of_noise_is_assumed_to_add_up_as_the_others(tmp_path: Path) -> None:
    path = Mlp(loss="mean").save(tmp_path / "mlp.onnx")
    model = onnx.load(path)
    zero = onnx.numpy_helper.from_array(np.zeros((), np.float32), "nothing")
    model.graph.initializer.append(zero)
    make = onnx.helper.make_node
    model.graph.node.append(make("Mul", ["dz", "nothing"], ["none_of_it"], name="none"))
    model.graph.node.append(make("ReduceSum", ["none_of_it"], ["bias_grad"], name="r", keepdims=0))
    model.graph.output.append(onnx.helper.make_tensor_value_info("bias_grad", 1, []))
    onnx.save(model, path)
    found = divided(path, 8)
    assert found.kinds.assumed == ("bias_grad",)
    assert any("'bias_grad' were 0" in note for note in found.notes)

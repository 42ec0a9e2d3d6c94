"""The committed samples: they run, they are small, and they can be built again."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest

from models import zoo
from models.survey import survey
from planner.export.inputs import InputSpec, read_specs


@pytest.mark.parametrize("name", zoo.NAMES)
def test_step_runs_and_gives_finite_numbers(name: str) -> None:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(
        str(zoo.path(name)), options, providers=["CPUExecutionProvider"]
    )
    loss, *others = session.run(None, zoo.feeds(name))
    assert np.asarray(loss).shape == ()
    assert 0 < float(np.asarray(loss)) < 20
    assert all(np.isfinite(np.asarray(other)).all() for other in others)


@pytest.mark.parametrize("name", zoo.NAMES)
def test_sidecar_matches_the_inputs(name: str) -> None:
    specs = read_specs(zoo.sidecar(name))
    for info in onnx.load(zoo.path(name)).graph.input:
        spec, tensor = specs.pop(info.name), info.type.tensor_type
        assert spec.shape == tuple(dim.dim_value for dim in tensor.shape.dim)
        assert np.dtype(spec.dtype) == onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)
    assert not specs


@pytest.mark.parametrize("name", zoo.NAMES)
def test_model_is_valid_and_static(name: str) -> None:
    model = onnx.load(zoo.path(name))
    onnx.checker.check_model(model, full_check=True)
    assert {node.domain for node in model.graph.node} == {""}
    survey(model)  # Raises where a shape is unknown.


@pytest.mark.parametrize("name", zoo.NAMES)
def test_files_are_small_and_the_activations_large(name: str) -> None:
    assert zoo.path(name).stat().st_size < 400_000
    model = onnx.load(zoo.path(name))
    parameters = sum(
        array.nbytes for key, array in zoo.feeds(name).items() if is_parameter(model, key)
    )
    assert parameters > 1_000_000
    assert survey(model).saved > 4 * parameters


def is_parameter(model: onnx.ModelProto, name: str) -> bool:
    """Whether the graph gives this input a gradient or a new value, as a trained tensor."""
    outputs = {output.name for output in model.graph.output}
    state = name.endswith(("_m", "_v", "running_mean", "running_var", "num_batches_tracked"))
    return not state and (f"{name}_grad" in outputs or f"{name}_new" in outputs)


@pytest.mark.parametrize("name", zoo.NAMES)
def test_same_bytes_when_built_again(name: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    from models.zoo.__main__ import rebuild

    folder = tmp_path_factory.getbasetemp() / "zoo"
    if not folder.exists():
        folder.mkdir()
        rebuild(folder)
    assert (folder / zoo.path(name).name).read_bytes() == zoo.path(name).read_bytes()
    assert (folder / zoo.sidecar(name).name).read_bytes() == zoo.sidecar(name).read_bytes()


def test_inputs_depend_on_their_name_alone() -> None:
    spec = InputSpec(shape=(2, 3), dtype="float32", kind="normal", std=0.5)
    assert np.array_equal(spec.draw("a"), spec.draw("a"))
    assert not np.array_equal(spec.draw("a"), spec.draw("b"))


@pytest.mark.parametrize(
    "spec",
    [
        InputSpec(shape=(), dtype="float32", kind="const", value=0.001),
        InputSpec(shape=(4,), dtype="float32", kind="normal", std=0.02),
        InputSpec(shape=(2, 3), dtype="int64", kind="randint", high=7),
    ],
)
def test_recipe_survives_the_file(spec: InputSpec) -> None:
    assert InputSpec.from_json(spec.to_json()) == spec


def test_recipe_draws_what_it_says() -> None:
    labels = InputSpec(shape=(1000,), dtype="int64", kind="randint", high=3).draw("labels")
    assert set(labels) == {0, 1, 2}
    weights = InputSpec(shape=(10_000,), dtype="float32", kind="normal", std=0.02).draw("w")
    assert weights.dtype == np.float32
    assert abs(weights.std() - 0.02) < 0.001

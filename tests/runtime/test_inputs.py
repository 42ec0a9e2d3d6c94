"""Where inputs come from, and how a wrong one is refused."""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from planner.errors import ModelError, UsageError
from planner.runtime.feeds.inputs import input_specs, make_inputs
from tests.runtime.support import constant, model_of, op


def _model(path: Path, *, dynamic: bool = False) -> Path:
    rows: int | str = "batch" if dynamic else 4
    x = ir.Value(name="x", shape=ir.Shape([rows, 3]), type=ir.TensorType(ir.DataType.FLOAT))
    index = ir.Value(name="i", shape=ir.Shape([rows]), type=ir.TensorType(ir.DataType.INT64))
    flag = ir.Value(name="flag", shape=ir.Shape([]), type=ir.TensorType(ir.DataType.BOOL))
    weight = constant("w", np.ones((4, 3), np.float32))
    node = op("y", "Add", x, weight, shape=(4, 3))
    # `w` is an overridable initializer
    ir.save(model_of([x, index, flag, weight], [node.outputs[0]], [node], [weight]), path)
    return path


def test_seeded_inputs_depend_on_the_seed_and_nothing_else(tmp_path: Path) -> None:
    path = _model(tmp_path / "m.onnx")
    first, source = make_inputs(path, 7)
    again, _ = make_inputs(path, 7)
    other, _ = make_inputs(path, 8)
    assert source == "random values from seed 7"
    assert all(np.array_equal(first[k], again[k]) for k in first)
    assert not np.array_equal(first["x"], other["x"])


def test_seeded_inputs_have_the_models_types_and_legal_indices(tmp_path: Path) -> None:
    inputs, _ = make_inputs(_model(tmp_path / "m.onnx"))
    assert set(inputs) == {"x", "i", "flag"}  # the initializer is the model's own
    assert inputs["x"].dtype == np.float32
    assert inputs["i"].dtype == np.int64 and set(np.unique(inputs["i"])) <= {0, 1}
    assert inputs["flag"].shape == () and not inputs["flag"]


def test_symbolic_dims_are_bound_or_named(tmp_path: Path) -> None:
    path = _model(tmp_path / "m.onnx", dynamic=True)
    assert input_specs(path)[0].dims == ("batch", 3)
    assert make_inputs(path, 0, {"batch": 9})[0]["x"].shape == (9, 3)
    with pytest.raises(UsageError, match="'x' has the open dim 'batch'; give it a size with --dim"):
        make_inputs(path)


def test_a_sidecar_is_followed(tmp_path: Path) -> None:
    path = _model(tmp_path / "m.onnx", dynamic=True)
    recipes = {
        "x": {"kind": "normal", "std": 2.0, "mean": 1.0, "shape": [4, 3], "dtype": "float32"},
        "i": {"kind": "randint", "low": 2, "high": 5, "shape": [4], "dtype": "int64"},
        "flag": {"kind": "const", "value": True, "shape": [], "dtype": "bool"},
    }
    sidecar = tmp_path / "m.inputs.json"
    sidecar.write_text(json.dumps(recipes))
    inputs, source = make_inputs(path)
    assert source == "recipes of m.inputs.json"
    generator = np.random.Generator(np.random.PCG64(zlib.crc32(b"x")))
    expected = generator.standard_normal((4, 3), dtype=np.float32) * np.float32(2) + np.float32(1)
    assert np.array_equal(inputs["x"], expected)
    assert inputs["i"].min() >= 2 and inputs["i"].max() < 5
    assert inputs["flag"]
    # a dim that the user binds goes before the sidecar's example
    assert make_inputs(path, dims={"batch": 6})[0]["x"].shape == (6, 3)
    del recipes["i"]
    sidecar.write_text(json.dumps(recipes))
    inputs, source = make_inputs(path, 5, {"batch": 4})
    assert source == "recipes of m.inputs.json; random values from seed 5 for i"
    assert inputs["i"].max() <= 1
    recipes["x"]["kind"] = "zipf"
    sidecar.write_text(json.dumps(recipes))
    with pytest.raises(UsageError, match=r"input 'x' is not a recipe: .*'zipf' - at `\$\.kind`"):
        make_inputs(path)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"std": None}, "missing required field `std`"),
        ({"std": "1"}, r"got `str` - at `\$\.std`"),
        ({"std": True}, r"got `bool` - at `\$\.std`"),
        ({"std": -1}, r">= 0\.0 - at `\$\.std`"),
        ({"std": 10**350}, r"out of range - at `\$\.std`"),
        ({"std": 1e308}, "do not fit float32"),
        ({"dtype": 5}, r"got `int` - at `\$\.dtype`"),
        ({"dtype": "f4,f4"}, "no type of numbers"),
        ({"shape": [4, -3]}, r">= 0 - at `\$\.shape\[1\]`"),
        ({"shape": [4, 3.0]}, r"got `float` - at `\$\.shape\[1\]`"),
        ({"shape": [10**30, 1]}, r"- at `\$\.shape\[0\]`"),
        ({"kind": None}, "missing required field `kind`"),
        ({"kind": "const", "value": "1"}, r"got `str` - at `\$\.value`"),
        ({"kind": "const", "value": 10**350}, "do not fit float32"),
        ({"kind": "randint", "high": 1.0}, r"got `float` - at `\$\.high`"),
        ({"kind": "randint", "high": 10**350}, "do not fit int64"),
        ({"kind": "randint", "high": -(10**350)}, r"no integer from 0 up to below -10+\.\.\."),
    ],
)
def test_a_recipe_that_makes_no_sense_is_one_clear_line(
    change: dict[str, Any], said: str, tmp_path: Path
) -> None:
    path = _model(tmp_path / "m.onnx")
    recipe = {"kind": "normal", "std": 2, "shape": [4, 3], "dtype": "float32"} | change
    recipe = {key: value for key, value in recipe.items() if value is not None}
    (tmp_path / "m.inputs.json").write_text(json.dumps({"x": recipe}))
    with pytest.raises(UsageError, match=rf"m\.inputs\.json: input 'x'.*{said}") as raised:
        make_inputs(path)
    assert "\n" not in str(raised.value) and len(str(raised.value).split(": input")[1]) < 200


def test_arrays_of_the_users_are_checked_by_name_type_and_shape(tmp_path: Path) -> None:
    path, feeds = _model(tmp_path / "m.onnx"), tmp_path / "feeds.npz"
    good = {
        "x": np.zeros((4, 3), np.float32),
        "i": np.zeros(4, np.int64),
        "flag": np.array(True),
    }
    np.savez(feeds, **good)
    inputs, source = make_inputs(path, feeds_path=feeds)
    assert source == "arrays of feeds.npz" and inputs["flag"]
    np.savez(feeds, **{**good, "x": np.zeros((4, 3))})
    with pytest.raises(UsageError, match="input 'x' is float64, the model wants float32"):
        make_inputs(path, feeds_path=feeds)
    np.savez(feeds, **{**good, "x": np.zeros((4, 2), np.float32)})
    with pytest.raises(UsageError, match=r"input 'x' has shape \[4, 2\], the model \[4, 3\]"):
        make_inputs(path, feeds_path=feeds)
    np.savez(feeds, x=good["x"])
    with pytest.raises(UsageError, match="no array for the model's input 'i'"):
        make_inputs(path, feeds_path=feeds)
    feeds.write_bytes(b"nonsense")
    with pytest.raises(UsageError, match=r"cannot be read as an \.npz"):
        make_inputs(path, feeds_path=feeds)


def test_a_file_that_is_no_model_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(b"\x00nonsense")
    with pytest.raises(ModelError, match=r"m\.onnx cannot be read"):
        make_inputs(path)

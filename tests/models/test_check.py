"""The checker itself: it must see what is wrong."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

pytest.importorskip("torch", reason="torch is not installed")

from models.check import distance, main, verify_structure
from planner.export.optim import SGD
from planner.export.write.emit import Builder, value_info

FLOAT = np.dtype(np.float32)


def test_distance_is_relative() -> None:
    values = np.array([3, 4], np.float32)
    assert distance(values, values) == 0
    assert distance(values * np.float32(1.5), values) == pytest.approx(0.5)


def test_other_shapes_and_types_are_far_apart() -> None:
    values = np.ones(2, np.float32)
    assert distance(values.reshape(1, 2), values) == float("inf")
    assert distance(values.astype(np.float64), values) == float("inf")


def test_command_line_tells_the_largest_differences(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["mlp", "--batch", "4", "--width", "8"]) == 0
    assert "9 outputs" in capsys.readouterr().out
    assert main(["mlp", "--batch", "4", "--width", "8", "--tolerance", "0"]) == 1


def test_wrong_update_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = ["mlp", "--width", "8", "--optimizer", "momentum"]
    assert main(arguments) == 0
    right = SGD.append
    monkeypatch.setattr(SGD, "append", lambda _, *rest: right(SGD(momentum=0.8), *rest))
    assert main(arguments) == 1


def test_dropout_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    size = ["--seq", "4", "--width", "8", "--heads", "2", "--layers", "1", "--vocabulary", "9"]
    assert main(["gpt2", *size, "--dropout", "0.1"]) == 2
    assert "random" in capsys.readouterr().err
    assert main(["gpt2", *size]) == 0


def test_value_without_static_shape_is_seen() -> None:
    builder = Builder()
    builder.reserve("x")
    output = value_info(builder.add("Relu", ["x"], "y"), FLOAT, ["batch"])
    model = builder.finish("g", [value_info("x", FLOAT, ["batch"])], [output])
    verify_structure(model, static=False)
    with pytest.raises(AssertionError, match="'y'"):
        verify_structure(model)


def test_foreign_operator_is_seen() -> None:
    builder = Builder()
    builder.reserve("x")
    output = value_info(builder.add("Gelu", ["x"], "y", domain="com.microsoft"), FLOAT, [2])
    model = builder.finish("g", [value_info("x", FLOAT, [2])], [output])
    model.opset_import.append(onnx.helper.make_opsetid("com.microsoft", 1))
    with pytest.raises(AssertionError, match="Gelu"):
        verify_structure(model)

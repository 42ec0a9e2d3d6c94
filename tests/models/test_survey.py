"""What counts as saved for the backward pass."""

from __future__ import annotations

import numpy as np
import pytest

from models.survey import survey
from planner.export.write.emit import Builder, value_info

FLOAT = np.dtype(np.float32)


def test_saved_values_are_made_before_the_loss_and_read_after_it() -> None:
    builder = Builder()
    builder.reserve("x")
    kept = builder.add("Relu", ["x"], "kept")
    flat = builder.reshape(kept, builder.integers([8]), "flat")
    passing = builder.add("Tanh", [flat], "passing")
    builder.add("ReduceSum", [passing], "loss", keepdims=0)
    builder.add("Exp", [kept], "first")
    builder.add("Exp", [flat], "second")
    builder.add("Exp", ["x"], "third")
    shapes = {"loss": [], "first": [2, 4], "second": [8], "third": [2, 4]}
    outputs = [value_info(name, FLOAT, shape) for name, shape in shapes.items()]
    found = survey(builder.finish("g", [value_info("x", FLOAT, [2, 4])], outputs))
    assert found.nodes == 7
    assert found.inputs == 32
    assert found.saved == 32, "only `kept`, once: `flat` is another name for it"


def test_symbolic_shapes_are_refused() -> None:
    builder = Builder()
    builder.reserve("x")
    builder.add("ReduceSum", ["x"], "loss", keepdims=0)
    inputs = [value_info("x", FLOAT, ["batch"])]
    with pytest.raises(ValueError, match="x has no static shape"):
        survey(builder.finish("g", inputs, [value_info("loss", FLOAT, [])]))

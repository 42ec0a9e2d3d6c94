"""What the operators tell of how totals add up is what runs on a few samples show, or is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from planner.errors import ModelError
from planner.micro.kinds import MEAN, SUM, Kinds
from planner.micro.shares import kinds_by_rules
from planner.micro.sink import values_to_add_up
from planner.pipeline.levers.dividing import Divisible
from tests.micro.nets import Graph, Mlp, divided
from tests.micro.test_adding_up import SIDE, _random_step

HUGE = 1 << 20
"""A weight of so many rows and columns takes 4 TiB."""


def told(found: Divisible) -> Kinds:
    """What the rules say of a model that was measured."""
    model, flow = found.loaded.model, found.flow
    return kinds_by_rules(model, flow, values_to_add_up(model, flow))


@pytest.mark.parametrize("dropout", [False, True])
@pytest.mark.parametrize("loss", ["mean", "sum", "counted"])
def test_rules_say_what_runs_show(loss: str, dropout: bool, tmp_path: Path) -> None:
    for update in (False, True):
        mlp = Mlp(loss=loss, dropout=dropout, update=update, layers=3)
        found = divided(mlp.save(tmp_path / "mlp.onnx"), 8)
        assert dict(told(found).of) == dict(found.kinds.of)


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_rules_never_contradict_runs(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("random")
    found = divided(_random_step(data.draw, folder / "step.onnx"), 6)
    of = told(found).of
    for name, kind in found.kinds.of.items():
        if name not in found.kinds.assumed:
            assert of[name] == kind, name


def test_a_model_that_cannot_be_run_here_is_divided_by_rules(tmp_path: Path) -> None:
    path = Mlp(loss="counted", update=True, hidden=HUGE, layers=3).save(tmp_path / "mlp.onnx")
    found = divided(path, 8)
    assert found.kinds.of["w1_grad"] == "count" and found.kinds.of["count"] == SUM
    assert "derived from the operators how totals add up, and did not measure it" in found.notes[0]
    assert found.flow.types["w1"].bytes == 4 * HUGE * HUGE
    _, batches = found.emitted(4)
    assert {a.output: a.bytes for a in batches.accumulators}["w1_grad"] == 4 * HUGE * HUGE


def huge(g: Graph, value: str) -> None:
    """A loss on 4 TiB, so that no run tells."""
    g.input("w", [HUGE, HUGE])
    g.op("ReduceMax", "w", to="most", keepdims=0)
    g.op("Mul", value, "most", to="scaled")
    g.op("ReduceSum", "scaled", to="t", keepdims=0)
    g.output("t")


def test_means_over_samples_are_told(tmp_path: Path) -> None:
    g = Graph()
    g.input("x", ["batch", SIDE])
    g.op("Size", "x", to="n")
    g.cast("n", "m")
    g.op("Div", "x", "m", to="each")
    huge(g, "each")
    assert divided(g.save(tmp_path / "net.onnx"), 8).kinds.of == {"t": MEAN}


@pytest.mark.parametrize(
    ("kind", "node"),
    [
        ("turned", "Slice:flipped"),
        ("mixed", "Reshape:mixed"),
        ("square", "Tanh:value"),
        ("unknown", "CumSum:summed"),
    ],
)
def test_what_the_rules_do_not_know_is_refused_by_name(
    kind: str, node: str, tmp_path: Path
) -> None:
    g = Graph()
    g.input("x", ["batch", SIDE])
    g.const("axis", [1], "int64")
    if kind == "turned":
        g.const("at", [-1], "int64")
        g.const("end", [-9999], "int64")
        g.const("first", [0], "int64")
        g.op("Slice", "x", "at", "end", "first", "at", to="flipped")
        g.op("Mul", "x", "flipped", to="value")
    elif kind == "mixed":  # rows of other samples stand side by side
        g.const("shape", [-1, SIDE], "int64")
        g.op("Transpose", "x", to="x_t")
        g.op("Reshape", "x_t", "shape", to="mixed")
        g.op("Mul", "x", "mixed", to="value")
    elif kind == "square":  # of what is divided by the size of the batch
        g.op("Size", "x", to="n")
        g.cast("n", "m")
        g.op("Div", "x", "m", to="each")
        g.op("Mul", "each", "each", to="square")
        g.op("Tanh", "square", to="value")
    else:
        g.const("one", 1, "int64")
        g.op("CumSum", "x", "one", to="summed")
        g.op("Tanh", "summed", to="value")
    huge(g, "value")
    with pytest.raises(ModelError, match=f"'t' adds up.*node '{node}'.*plan on a larger machine"):
        divided(g.save(tmp_path / "net.onnx"), 8)

"""What ONNX Runtime's profile says, and session options that do what they promise."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from planner.errors import ModelError
from planner.runtime.options import Opening
from planner.runtime.profile import create_session, read_profile
from planner.runtime.profiled import Profiled, profile
from tests.runtime.support import constant, model_of, op, save, tensor

SIZE = 25_600
BYTES = 4 * SIZE


def _chain(path: Path) -> Path:
    """y0 = -(x + w) is an output; Where takes two temporaries and is the last reader."""
    x, w = tensor("x", SIZE), constant("w", np.ones(SIZE, np.float32))
    add = op("add", "Add", x, w, shape=(SIZE,))
    neg = op("neg", "Neg", add.outputs[0], shape=(SIZE,))
    mask = ir.node("Greater", [neg.outputs[0], x], name="mask")
    mask.outputs[0].name = "mask:out"
    where = op("where", "Where", mask.outputs[0], neg.outputs[0], x, shape=(SIZE,))
    exp = op("exp", "Exp", where.outputs[0], shape=(SIZE,))
    outputs = [neg.outputs[0], exp.outputs[0]]
    return save(model_of([x], outputs, [add, neg, mask, where, exp], [w]), path)[0]


@pytest.fixture
def chain(tmp_path: Path) -> Path:
    return _chain(tmp_path / "chain.onnx")


FEED = {"x": np.ones(SIZE, np.float32)}


def test_dead_inputs_count_at_their_last_node_and_workspace_only_in_the_peak(chain: Path) -> None:
    opening = Opening(memory="recommended", level="disabled", threads=1)
    for run in profile(chain, FEED, opening, runs=2):
        seen = {e.name: e for e in run}
        requested = {name: (e.requested_in_use or 0) / BYTES for name, e in seen.items()}
        # neither the feed nor the initializer is in the arena
        assert requested == {"add": 1, "neg": 2, "mask": 1.25, "where": 2.25, "exp": 3}
        assert seen["where"].in_use_peak == 4.25 * BYTES  # two temporaries of Where
        assert seen["exp"].requested_delta == BYTES
    # the peak is the session's: it never falls
    assert seen["add"].in_use_peak == 4.25 * BYTES


def test_runs_are_told_apart_and_ordered(chain: Path) -> None:
    runs = profile(chain, FEED, runs=3)
    assert len(runs) == 3
    assert all([e.name for e in run] == [e.name for e in runs[0]] for run in runs)
    assert all(a.start_us <= b.start_us for run in runs for a, b in itertools.pairwise(run))


def test_outputs_of_the_first_run_are_handed_over(chain: Path) -> None:
    seen: list[tuple[list[str], float]] = []
    with Profiled(chain, Opening()) as opened:
        opened.profile(FEED, on_outputs=lambda names, arrays: seen.append((names, arrays[0][0])))
    assert seen == [(["neg:out", "exp:out"], -2.0)]


def test_priority_order_is_file_order(tmp_path: Path) -> None:
    x = tensor("x", 4)
    late, early = op("late", "Neg", x, shape=(4,)), op("early", "Exp", x, shape=(4,))
    model = model_of([x], [late.outputs[0], early.outputs[0]], [late, early])
    path, _ = save(model, tmp_path / "m.onnx")
    feed = {"x": np.ones(4, np.float32)}
    assert [e.name for e in profile(path, feed)[0]] == ["early", "late"]
    assert [e.name for e in profile(path, feed, Opening(order="priority"))[0]] == ["late", "early"]


def test_an_operator_without_a_kernel_is_named(tmp_path: Path) -> None:
    x = tensor("x", 4)
    node = ir.node("ReluGrad", [x, x], domain="com.microsoft", name="backward of relu")
    node.outputs[0].name, node.outputs[0].shape, node.outputs[0].type = "y", x.shape, x.type
    model = model_of([x], list(node.outputs), [node])
    model.graph.opset_imports["com.microsoft"] = 1
    ir.save(model, tmp_path / "m.onnx")
    with pytest.raises(ModelError, match=r"ReluGrad.*onnxruntime-training"):
        create_session(tmp_path / "m.onnx", Opening().options())


def test_a_file_that_is_no_profile_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    for text in ("not json", '{"a": 1}', '[{"cat": "Node", "name": "x_kernel_time"}]'):
        path.write_text(text)
        with pytest.raises(ModelError, match="is not a profile written by ONNX Runtime"):
            read_profile(path)

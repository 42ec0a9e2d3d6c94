"""The table of effects against the operators that onnx and ONNX Runtime have, and their kernels."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import defs

from planner.graph.effects import Effect, effect_of
from planner.graph.operators.table import operator_of
from planner.graph.reasons import why_once
from planner.graph.rules import written_inputs
from planner.runtime.options import Opening
from planner.runtime.profile import run_session
from tests.graph.ort_cases import cases
from tests.graph.ort_probe import Case, single_model

NOT_RANDOM = {("", "AffineGrid")}
"""onnx calls it non-deterministic for the `If` in its body, whose condition is a constant."""

BEYOND_VALUES = {
    Effect.CONTAINER,
    Effect.RUNNING_STATISTICS,
    Effect.STATE_UPDATE,
    Effect.ANY_ORDER,
    Effect.CONTROL_FLOW,
}
"""Kinds whose values are the same each time by onnx's definition; it is the run that does more."""


def test_the_table_agrees_with_what_onnx_says_of_determinism() -> None:
    kinds = defs.OpSchema.NodeDeterminism
    said = {(s.domain, s.name): s.node_determinism for s in defs.get_all_schemas()}
    random = {key for key, kind in said.items() if kind == kinds.NonDeterministic}
    assert len(random) >= 10
    for domain, name in random - NOT_RANDOM:
        kind = operator_of(name, domain).effect
        assert kind.is_random or kind is Effect.CONTROL_FLOW, name
    for domain, name in (key for key, kind in said.items() if kind == kinds.Deterministic):
        assert operator_of(name, domain).effect in {Effect.PURE, *BEYOND_VALUES}, name


@pytest.mark.parametrize("case", [c for _, c in cases()], ids=lambda c: c.op_type)
def test_a_kernel_that_may_run_twice_repeats_itself_and_writes_over_nothing(case: Case) -> None:
    switched = case.op_type == "Dropout" and len(case.inputs) > 2
    training = switched or bool(case.attributes.get("training_mode"))
    if effect_of(case.op_type, case.domain, case.attributes, training=training) is not Effect.PURE:
        pytest.skip("may not run twice")
    model, feeds = single_model(case)
    session = ort.InferenceSession(
        ir.to_proto(model).SerializeToString(),
        Opening(threads=2).options(),
        providers=["CPUExecutionProvider"],
    )
    given = {name: np.array(array) for name, array in feeds.items()}
    first, second = (run_session(session, feeds) for _ in range(2))
    for a, b in zip(first, second, strict=True):
        np.testing.assert_array_equal(a, b)
    for name, array in given.items():
        np.testing.assert_array_equal(array, feeds[name])
    assert written_inputs(case.op_type, case.domain, training) == ()


@pytest.mark.parametrize(
    ("op_type", "domain", "training", "why"),
    [
        ("RandomNormalLike", "", False, "draws random numbers"),
        ("Bernoulli", "", False, "draws random numbers"),
        ("Dropout", "", True, "with a fixed seed too, draws"),
        ("BitmaskDropout", "com.microsoft", False, "draws random numbers"),
        ("BatchNormalization", "", True, "running statistics"),
        ("BatchNormInternal", "com.microsoft", False, "running statistics"),
        ("InPlaceAccumulatorV2", "com.microsoft", False, "updates state"),
        ("AdamWOptimizer", "com.microsoft", False, "updates state"),
        ("SGDOptimizerV2", "com.microsoft", False, "updates state"),
        ("Adam", "ai.onnx.preview.training", False, "updates state"),
        ("Momentum", "ai.onnx.preview.training", False, "updates state"),
        ("If", "", False, "runs a subgraph"),
        ("Loop", "", False, "runs a subgraph"),
        ("SequenceAt", "", False, "sequences, optionals or strings"),
        ("OptionalGetElement", "", False, "sequences, optionals or strings"),
        ("YieldOp", "com.microsoft", False, "outside the graph"),
        ("RecordEvent", "com.microsoft", False, "outside the graph"),
        ("WaitEvent", "com.microsoft", False, "outside the graph"),
        ("MatMul", "org.example", False, "whose effects we don't know"),
        ("Frobnicate", "com.microsoft", False, "whose effects we don't know"),
        ("Frobnicate", "", False, "operator of ai.onnx whose effects we don't know"),
        ("FlexAttention", "ai.onnx.preview", False, "runs a subgraph"),
        ("Gradient", "ai.onnx.preview.training", False, "runs a subgraph"),
        ("EPContext", "com.microsoft", False, "compiled graph"),
        ("PagedAttention", "com.microsoft", False, "updates state"),
        ("GatherGrad", "com.microsoft", False, "in an order that differs from run to run"),
    ],
)
def test_what_may_not_run_twice_says_why(
    op_type: str, domain: str, training: bool, why: str
) -> None:
    effect = effect_of(op_type, domain, {"seed": 7}, training=training)
    reason = why_once(effect)
    assert reason is not None and why in reason.of(op_type, domain)


@pytest.mark.parametrize(
    ("op_type", "domain"),
    [
        ("Dropout", ""),
        ("BatchNormalization", ""),
        ("MatMul", ""),
        ("MatMul", "ai.onnx"),
        ("FusedMatMul", "com.microsoft"),
        ("LayerNormalizationGrad", "com.microsoft"),
        ("MaxPoolGrad", ""),
        ("ScatterElements", ""),
        ("ScatterND", ""),
    ],
)
def test_what_may_run_twice(op_type: str, domain: str) -> None:
    effect = effect_of(op_type, domain, {})
    assert effect is Effect.PURE
    assert why_once(effect) is None


@pytest.mark.parametrize("name", ["RandomNormal", "Bernoulli", "Multinomial"])
def test_a_seed_makes_no_operator_repeat_itself(name: str) -> None:
    assert effect_of(name, "", {}) is Effect.RANDOM_UNSEEDED
    assert effect_of(name, "", {"seed": 3.0}) is Effect.RANDOM_SEEDED


def test_a_seeded_kernel_draws_the_next_numbers_in_each_run() -> None:
    # why a recompute of it would give other values, with a seed too
    x = np.zeros((4, 4), np.float32)
    case = Case(op_type="RandomUniformLike", inputs=(x,), attributes={"seed": 3.0})
    model, feeds = single_model(case)
    data = ir.to_proto(model).SerializeToString()
    session = ort.InferenceSession(data, Opening().options(), providers=["CPUExecutionProvider"])
    first, second = (run_session(session, feeds)[0] for _ in range(2))
    assert not np.array_equal(first, second)


def test_a_scatter_is_pure_only_where_it_does_not_reduce() -> None:
    reduced = effect_of("ScatterND", "", {"reduction": "add"})
    assert reduced is Effect.ANY_ORDER
    assert effect_of("ScatterND", "", {"reduction": "none"}) is Effect.PURE


def test_a_subgraph_makes_any_operator_control_flow() -> None:
    assert effect_of("MatMul", "", {}, has_subgraph=True) is Effect.CONTROL_FLOW
    assert effect_of("MyLoop", "org.example", {}, has_subgraph=True) is Effect.CONTROL_FLOW

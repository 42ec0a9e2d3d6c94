"""The operator table: complete, and each of its rules is one that a room has."""

from __future__ import annotations

import importlib
from typing import get_args

import pytest
from onnx import defs

from planner.graph.effects import Effect, effect_of
from planner.graph.operators import row as rows_of
from planner.graph.operators.contrib import CONTRIB
from planner.graph.operators.row import Operator
from planner.graph.operators.standard import STANDARD
from planner.graph.operators.table import listed, operator_of, rows
from planner.graph.operators.training import TRAINING
from planner.graph.reasons import why_once
from planner.graph.rules import alias_pairs, inplace_pairs, view_input, written_inputs
from planner.lower.chunks import row_rules
from planner.micro import share_rules
from planner.runtime.memory import workspace

NEWEST = defs.onnx_opset_version()

OPAQUE = """
    AffineGrid BitCast BitwiseNot BlackmanWindow CastLike CausalConvWithState CenterCropPad Col2Im
    ConcatFromSequence ConvInteger CumProd DFT DeformConv DequantizeLinear Det
    DynamicQuantizeLinear GRU GlobalLpPool GridSample HammingWindow HannWindow If ImageDecoder LRN
    LSTM LinearAttention Loop MatMulInteger MaxRoiPool MaxUnpool MeanVarianceNormalization
    MelWeightMatrix NonMaxSuppression Optional OptionalGetElement OptionalHasElement QLinearConv
    QLinearMatMul QuantizeLinear RNN RegexFullMatch RoiAlign STFT Scan SequenceAt
    SequenceConstruct SequenceEmpty SequenceErase SequenceInsert SequenceLength SequenceMap Shrink
    SplitToSequence StringConcat StringNormalizer StringSplit SwiGLU Swish TensorScatter
    TfIdfVectorizer"""
"""Operators of the standard whose arithmetic is not known: their bytes alone count, with a remark."""


def schemas(domain: str) -> set[str]:
    """Names of a domain's operators, in any version up to the newest."""
    found = defs.get_all_schemas_with_history()
    return {s.name for s in found if s.domain == domain and s.since_version <= NEWEST}


def test_every_operator_of_the_standard_has_a_row_and_costs_something_or_is_opaque() -> None:
    names = schemas("")
    assert len(names) > 190
    assert names - STANDARD.keys() == set()
    assert {name for name in names if STANDARD[name].cost is None} == set(OPAQUE.split())


@pytest.mark.parametrize("domain", ["ai.onnx.ml", "ai.onnx.preview", "ai.onnx.preview.training"])
def test_every_operator_of_the_other_standard_domains_has_a_row(domain: str) -> None:
    found = defs.get_all_schemas_with_history()
    names = {s.name for s in found if s.domain == domain}
    assert {name for name in names if listed(name, domain) is None} == set()


def test_every_operator_of_onnx_runtime_has_a_row() -> None:
    state = importlib.import_module("onnxruntime.capi.onnxruntime_pybind11_state")
    theirs = {(s.domain, s.name) for s in state.get_all_operator_schema()}
    contrib = {key for key in theirs if key[0] in ("com.microsoft", "com.microsoft.nchwc")}
    assert len(contrib) > 100
    assert {key for key in contrib if listed(key[1], key[0]) is None} == set()


def test_the_row_of_onnx_is_that_of_its_long_name() -> None:
    assert operator_of("Conv", "ai.onnx") is operator_of("Conv", "")
    assert CONTRIB.keys().isdisjoint(TRAINING)


@pytest.mark.parametrize(
    ("op_type", "domain", "effect"),
    [
        ("Frobnicate", "", Effect.UNKNOWN_OPERATOR),
        ("Frobnicate", "com.microsoft", Effect.UNKNOWN_OPERATOR),
        ("MatMul", "org.example", Effect.UNKNOWN_DOMAIN),
        ("Softmax", "org.example", Effect.UNKNOWN_DOMAIN),
    ],
)
def test_of_an_unknown_operator_nothing_is_told(op_type: str, domain: str, effect: Effect) -> None:
    assert operator_of(op_type, domain) == Operator(effect)
    assert why_once(effect_of(op_type, domain, {})) is not None  # never run twice
    assert view_input(op_type, domain) is None  # a buffer of its own for each output
    assert inplace_pairs(op_type, domain, "float") == alias_pairs(op_type, domain) == ()
    assert written_inputs(op_type, domain, True) == ()
    assert operator_of(op_type, domain).cost is None


def test_rooms_have_the_rules_that_rows_name_and_no_others() -> None:
    used = [row for _, _, row in rows()]
    assert {row.rows for row in used} - {None} == row_rules.RULES.keys()
    assert {row.share for row in used} - {None} == share_rules.RULES.keys()
    assert {row.workspace for row in used} - {None} == workspace.RULES.keys()
    costs = {row.cost.rule for row in used if row.cost is not None}
    assert costs == set(get_args(rows_of.CostRule))


def test_what_is_never_run_twice_is_cut_into_no_rows() -> None:
    for domain, name, row in rows():
        if row.rows is not None:
            assert row.effect is Effect.PURE, (domain, name)

"""Reasons are enums: each has a code and a sentence, and each effect but one has a reason."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import chain
from pathlib import Path

import pytest

from planner.graph.effects import Effect
from planner.graph.model import Category, Operation, OpId, Tensor, TensorId
from planner.graph.reasons import Reason, WhyClosed, WhyOnce, WhyStay, why_once

PLANFILE = Path(__file__).parents[2] / "planner" / "plan" / "planfile.md"

OPERATION = Operation(
    id=OpId(0), name="op", op_type="Relu", domain="", inputs=(), outputs=(TensorId(0),)
)
TENSOR = Tensor(
    id=TensorId(0),
    name="t",
    dtype="float",
    shape=(4,),
    bytes=16,
    category=Category.ACTIVATION,
    buffer=TensorId(0),
    producer=OpId(0),
    consumers=(),
)


@pytest.mark.parametrize("effect", Effect)
def test_every_effect_but_none_has_a_reason_of_its_own(effect: Effect) -> None:
    reason = why_once(effect)
    if effect is Effect.PURE:
        assert reason is None
        return
    assert reason is not None
    assert [e for e in Effect if why_once(e) is reason] == [effect]


@pytest.mark.parametrize("reason", [*WhyOnce, *WhyStay, *WhyClosed])
def test_a_reason_is_its_code_in_json_and_is_found_by_it(reason: Reason) -> None:
    code = json.loads(json.dumps(reason))
    assert type(reason)(code) is reason
    assert code != reason.sentence and reason.sentence


def test_a_code_means_one_thing_and_the_plan_files_description_lists_it() -> None:
    said: dict[str, set[str]] = {}
    for reason in chain(WhyOnce, WhyStay, WhyClosed):
        said.setdefault(reason.value, set()).add(reason.sentence)
    assert [code for code, sentences in said.items() if len(sentences) > 1] == []
    text = PLANFILE.read_text()
    assert [code for code in said if f"`{code}`" not in text] == []


def test_a_sentence_names_the_operator_and_its_domain() -> None:
    assert WhyOnce.UNKNOWN_OPERATOR.of("Frob", "").startswith("Frob is an operator of ai.onnx")
    assert "'org.example'" in WhyOnce.UNKNOWN_DOMAIN.of("Frob", "org.example")
    assert not any("{" in why.of("Frob", "org.example") for why in WhyOnce)


def test_what_planning_barred_comes_before_what_the_operator_says() -> None:
    assert OPERATION.recomputable and OPERATION.why_not == ""
    barred = replace(OPERATION, barred=WhyOnce.TAKEN)
    assert not barred.recomputable and barred.why_once is WhyOnce.TAKEN
    drawing = replace(OPERATION, effect=Effect.RANDOM_UNSEEDED)
    assert drawing.why_once is WhyOnce.RANDOM_UNSEEDED
    assert replace(drawing, barred=WhyOnce.TAKEN).why_not == WhyOnce.TAKEN.sentence


def test_running_statistics_may_be_computed_again_where_they_go_elsewhere() -> None:
    norm = replace(OPERATION, effect=Effect.RUNNING_STATISTICS)
    assert norm.why_once is WhyOnce.RUNNING_STATISTICS
    apart = replace(norm, scratch=(TensorId(0),))
    assert apart.why_once is None
    assert replace(apart, barred=WhyOnce.TAKEN).why_once is WhyOnce.TAKEN


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, None),
        ({"bytes": 0}, WhyStay.NO_BYTES),
        ({"on_host": True}, WhyStay.ON_HOST),
        ({"barred": WhyStay.TAKEN}, WhyStay.TAKEN),
        ({"barred": WhyStay.TAKEN, "bytes": 0}, WhyStay.NO_BYTES),
    ],
)
def test_why_a_tensor_stays(changes, expected) -> None:
    assert replace(TENSOR, **changes).why_stay is expected

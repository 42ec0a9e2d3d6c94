"""The rules for onnxruntime-training's operators against its kernels."""

from __future__ import annotations

from typing import Any

import pytest

from planner.graph import rules
from planner.graph.effects import Effect, effect_of
from planner.graph.operators.table import operator_of
from tests.training.cases import cases

CASES = [(i, case.op_type, note) for i, (note, case) in enumerate(cases())]
IDS = [f"{op} {note}".strip() for _, op, note in CASES]
SMALL_BYTES = 4096  # of scalars and of rounding

Facts = list[dict[str, Any]]


@pytest.mark.parametrize("number", range(len(CASES)), ids=IDS)
def test_shapes_are_those_of_the_run(kernel_facts: Facts, number: int) -> None:
    fact = kernel_facts[number]
    assert fact["inferred"] == fact["shapes"]


@pytest.mark.parametrize("number", range(len(CASES)), ids=IDS)
def test_buffers_are_shared_as_the_rules_say(kernel_facts: Facts, number: int) -> None:
    fact, case = kernel_facts[number], cases()[number][1]
    view = rules.view_input(case.op_type, case.domain)
    assert [tuple(pair) for pair in fact["views"]] == ([] if view is None else [(view, 0)])
    pairs = [tuple(pair) for pair in fact["inplace"]]
    assert pairs == list(rules.inplace_pairs(case.op_type, case.domain, "float"))
    sizes = [_bytes(shape) for _, shape in fact["shapes"]]
    aliased = sum(
        sizes[out] for _, out in rules.alias_pairs(case.op_type, case.domain) if out < len(sizes)
    )
    assert abs(fact["aliased_bytes"] - aliased) < SMALL_BYTES


@pytest.mark.parametrize("number", range(len(CASES)), ids=IDS)
def test_workspace_is_what_the_kernel_takes(kernel_facts: Facts, number: int) -> None:
    fact = kernel_facts[number]
    assert fact["workspace_bytes"] == fact["expected_workspace_bytes"]


@pytest.mark.parametrize("number", range(len(CASES)), ids=IDS)
def test_what_may_run_twice_writes_nothing_and_repeats_itself(
    kernel_facts: Facts, number: int
) -> None:
    fact, case = kernel_facts[number], cases()[number][1]
    expected = rules.written_inputs(case.op_type, case.domain, training=True)
    assert fact["written"] == list(expected)
    effect = effect_of(case.op_type, case.domain, case.attributes, training=True)
    if effect is Effect.PURE:
        assert fact["repeatable"] and not expected


@pytest.mark.parametrize("op_type", sorted({op for _, op, _ in CASES}))
def test_arithmetic_is_known(op_type: str) -> None:
    costs = [operator_of(op_type, domain).cost for domain in ("", "com.microsoft")]
    assert any(cost is not None for cost in costs)


def _bytes(shape: list[int]) -> int:
    size = 4
    for dim in shape:
        size *= dim
    return size

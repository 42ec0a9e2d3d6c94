"""Every operator that the gradient builder emits has all its rules."""

from __future__ import annotations

import json

from tests.training.conftest import Run
from tests.training.coverage import covered


def test_every_operator_of_the_artifacts_is_covered(training_run: Run) -> None:
    done = training_run("-m", "tests.training.coverage")
    found = json.loads(done.stdout.splitlines()[-1])
    keys = {(d, op, v) for graph in found.values() for d, op, v in graph}
    names = {op for _, op, _ in keys}
    # the nets hold what they are there for
    assert {"ConvGrad", "BatchNormInternal", "LayerNormalizationGrad", "GatherGrad"} <= names
    assert {"SliceGrad", "MaxPoolGrad", "AveragePoolGrad", "DropoutGrad"} <= names
    assert [c for c in map(covered, sorted(keys)) if not c.all] == []


def test_an_operator_without_rules_is_not_covered() -> None:
    unknown = covered(("com.microsoft", "Frobnicate", 1))
    assert not (unknown.shape or unknown.flops or unknown.effect or unknown.in_place)

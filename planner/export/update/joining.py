"""Join two outcomes of an update."""

from __future__ import annotations

from typing import Any

from torch import fx

from planner.export.errors import UpdateRefused
from planner.export.update.outcome import UpdateOutcome
from planner.export.update.trace import Tracer


def flat(tracer: Tracer, outcome: UpdateOutcome, other: UpdateOutcome) -> dict[Any, fx.Node]:
    """Return all values that an outcome leaves; what only the other changes keeps its value."""
    found: dict[Any, fx.Node] = {}
    for key in {**outcome.leaves, **other.leaves}:
        found["leaf", key] = outcome.leaves.get(key) or tracer.input_of(key)
    found |= {("place", path): node for path, node in outcome.places.items()}
    return found | {("result", name): node for name, node in outcome.results.items()}


def either(
    tracer: Tracer, flag: fx.Node, one: UpdateOutcome, other: UpdateOutcome
) -> UpdateOutcome:
    """Return an outcome that is `one` if the flag holds and `other` if not."""
    yes, no = flat(tracer, one, other), flat(tracer, other, one)
    if yes.keys() != no.keys():
        raise UpdateRefused(
            "its first step leaves other state than its later steps: take one step in PyTorch "
            "before the export"
        )
    found = UpdateOutcome()
    into: dict[str, dict[Any, fx.Node]] = {
        "leaf": found.leaves,
        "place": found.places,
        "result": found.results,
    }
    for (kind, key), node in yes.items():
        into[kind][key] = tracer.merged.where(flag, node, no[kind, key])
    return found

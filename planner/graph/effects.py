"""What an operator does beyond its outputs, and whether it may therefore run a second time.

`planner.graph.operators` has the effect of each operator. What is not in that table is not known, and
what is not known is never run twice.

Three kinds are only a kind in some nodes; `effect_of` looks at the node:

    random               with a `seed` the kernel starts a generator of its own, which each run advances
    training-mode        Dropout and BatchNormalization do nothing of the kind at inference
    adds in any order    ScatterND only where it reduces

Sources: docs/Operators.md of onnx; docs/ContribOperators.md and the CPU kernels of onnxruntime 1.31
(core/providers/cpu/generator/random.h: without a seed, a kernel starts its generator from the session's
seed plus the node's place in the file); orttraining/core/graph/training_op_defs.cc of 1.19.2.
"""

from __future__ import annotations

from collections.abc import Mapping

from planner.graph.operators.row import Effect
from planner.graph.operators.table import ONNX_DOMAINS, operator_of

SHARED_GENERATOR = frozenset({Effect.RANDOM_UNSEEDED, Effect.RANDOM_IN_TRAINING})
"""Draws whose numbers may depend on what was drawn before by another operation."""


def effect_of(
    op_type: str,
    domain: str,
    attributes: Mapping[str, object],
    *,
    training: bool = False,
    has_subgraph: bool = False,
) -> Effect:
    """What a run of this node does.

    Args:
        attributes: plain values by name; whether there is a `seed` or a `reduction` matters.
        training: for BatchNormalization and Dropout, whether the node is in training mode.
        has_subgraph: some attribute of the node is a graph.
    """
    if has_subgraph:
        return Effect.CONTROL_FLOW
    kind = operator_of(op_type, domain).effect
    if domain in ONNX_DOMAINS and op_type in ("BatchNormalization", "Dropout") and not training:
        return Effect.PURE
    if kind in (Effect.RANDOM_UNSEEDED, Effect.RANDOM_IN_TRAINING) and "seed" in attributes:
        return Effect.RANDOM_SEEDED
    if op_type == "ScatterND" and attributes.get("reduction", "none") == "none":
        return Effect.PURE
    return kind

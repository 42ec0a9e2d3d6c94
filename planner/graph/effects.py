"""Side effects of operators, which decide whether an operation may run a second time.

`planner.graph.operators` has the effect of each operator. An operator that the table lacks is never
run twice.

Three effects depend on the node; `effect_of` looks at it:

    random               with a `seed`, the kernel starts its own generator, which each run advances
    training mode        Dropout and BatchNormalization have no side effect at inference
    adds in any order    ScatterND has this effect only if it reduces

Sources: docs/Operators.md of onnx; docs/ContribOperators.md and the CPU kernels of onnxruntime 1.31
(core/providers/cpu/generator/random.h: without a seed, a kernel seeds its generator with the
session's seed plus the node's place in the file); orttraining/core/graph/training_op_defs.cc of
1.19.2.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from planner.graph.operators.row import Effect
from planner.graph.operators.table import ONNX_DOMAINS, operator_of

if TYPE_CHECKING:
    import onnx_ir as ir

SHARED_GENERATOR = frozenset({Effect.RANDOM_UNSEEDED, Effect.RANDOM_IN_TRAINING})
"""Random effects whose numbers may depend on earlier draws of other operations."""


def effect_of(
    op_type: str,
    domain: str,
    attributes: Mapping[str, object],
    *,
    training: bool = False,
    has_subgraph: bool = False,
) -> Effect:
    """Return the effect of running a node.

    Args:
        attributes: plain values by name; only the presence of `seed` and the value of `reduction`
            matter.
        training: whether a BatchNormalization or Dropout node is in training mode.
        has_subgraph: whether an attribute of the node is a graph.
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


def is_training(node: ir.Node) -> bool:
    """Tell whether a BatchNormalization or Dropout node is in training mode, or may be by an input."""
    if node.op_type == "BatchNormalization":
        mode = node.attributes.get_int("training_mode")
        if mode is None:  # before operator set 14, outputs for the statistics select training mode
            return any(v.name for v in node.outputs[1:])
        return bool(mode)
    if node.op_type == "Dropout" and len(node.inputs) > 2 and node.inputs[2] is not None:
        switch = node.inputs[2]
        constant = None if switch.is_graph_input() else switch.const_value
        return constant is None or bool(constant.numpy().any())
    return False

"""Graph inputs that kernels write over: results that are no outputs.

Accumulated gradients of onnxruntime-training are returned this way, and so are running statistics.
ONNX Runtime does not copy a feed on the CPU: the caller's own array is written.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from planner.graph import rules
from planner.graph.model import TrainingGraph

Array = npt.NDArray[Any]


def written_inputs(graph: TrainingGraph) -> tuple[str, ...]:
    """Return the names of the graph inputs that a kernel changes, in the graph's order."""
    found: set[int] = set()
    for op in graph.operations:
        training = bool((op.attributes or {}).get("training_mode"))
        for index in rules.written_inputs(op.op_type, op.domain, training):
            if index < len(op.inputs):
                found.add(graph.tensors[op.inputs[index]].buffer)
    return tuple(graph.tensors[t].name for t in graph.inputs if t in found)


def with_own(inputs: Mapping[str, Array], names: tuple[str, ...]) -> dict[str, Array]:
    """Return the same inputs, with copies of those in `names`."""
    return {name: np.array(a) if name in names else a for name, a in inputs.items()}


def as_left(
    inputs: Mapping[str, Array], names: tuple[str, ...], outputs: Collection[str] = ()
) -> dict[str, Array]:
    """Return the values that a run left in those of `names` that were fed, under names that no output
    has."""
    found: dict[str, Array] = {}
    for name in (n for n in names if n in inputs):
        label = f"{name} (written in place)"
        while label in outputs or label in found:
            label += "'"
        found[label] = inputs[name]
    return found

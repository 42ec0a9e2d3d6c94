"""Make a rewritten model proof against ONNX Runtime's optimizers.

The plan is made on a graph that is already optimized, but a recomputed chain can open a fusion that
the original did not allow (an intermediate that the backward pass reads has one reader fewer in the
copy). A fusion would change both the numbers and the order. So the rewritten model is put through
the optimizers once more; wherever a node was taken, its output gets a second reader (an anchor),
which no fusion accepts, and the node a unique attribute, which no merge of equal nodes accepts (the
new file order can allow one that the old did not), until nothing changes.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import onnx_ir as ir

from planner.errors import ModelError
from planner.lower.rewrite import Rewritten
from planner.onnxio.load import LoadedModel
from planner.runtime.normalize import first_line
from planner.runtime.shapes import without_large_initializers

_MAX_ROUNDS = 12


def settle(
    lower: Callable[[frozenset[str]], Rewritten], loaded: LoadedModel, *, enabled: bool
) -> Rewritten:
    """Lower with more and more pinned values until the optimizers leave every node alone.

    Args:
        lower: makes the rewritten model for a set of pinned values.
        enabled: False where the model was not optimized before: then the original's own nodes
            would be fused as well, and nothing can be told.

    Raises:
        ModelError: a node keeps being taken, by name.
    """
    pinned: frozenset[str] = frozenset()
    rewritten = lower(pinned)
    if not enabled:
        return rewritten
    taken: list[ir.Node] = []
    for _ in range(_MAX_ROUNDS):
        survivors = _optimized_nodes(rewritten.model)
        taken = [node for node in rewritten.model.graph if node.name not in survivors]
        if not taken:
            return rewritten
        more = pinned | {str(v.name) for node in taken for v in node.outputs if v.name}
        if more == pinned:
            break
        pinned = more
        rewritten = lower(pinned)
    names = ", ".join(repr(node.name) for node in taken[:3])
    raise ModelError(f"ONNX Runtime's optimizers keep rewriting {names} in {loaded.path}")


def _optimized_nodes(model: ir.Model) -> set[str]:
    """Names of the nodes that are left after ONNX Runtime's full set of optimizations."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
    proto = ir.to_proto(without_large_initializers(model))
    with tempfile.TemporaryDirectory(prefix="planner-") as folder:
        path = Path(folder) / "optimized.onnx"
        options.optimized_model_filepath = str(path)
        try:
            ort.InferenceSession(
                proto.SerializeToString(), options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:
            raise ModelError(
                f"ONNX Runtime cannot load the rewritten model: {first_line(error)}"
            ) from error
        return {str(node.name) for node in ir.load(path).graph}

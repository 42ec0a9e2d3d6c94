"""An ONNX Runtime session of the exported step, fed from numpy."""

from __future__ import annotations

from collections.abc import Iterable

import ml_dtypes
import numpy as np
from onnx import ModelProto, TensorProto, ValueInfoProto, helper

from planner.export.checking.eager import Arrays
from planner.export.write.lower import LoweredStep

_WIDE = "{}.as_float32"
"""Name of a bfloat16 tensor's float32 counterpart between the graph and numpy."""


class GraphSession:
    """A session of the exported step, with its random tensors as inputs."""

    def __init__(self, graph: LoweredStep) -> None:
        import onnxruntime as ort

        options = ort.SessionOptions()
        options.log_severity_level = 4
        # Spinning threads take cores from PyTorch and other processes.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        self.graph = graph
        model, self._narrow = _without_bfloat16(graph.model)
        self.session = ort.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        self.names = [output.name for output in graph.model.graph.output]
        self.wanted = {given.name for given in graph.model.graph.input}

    def run(self, feeds: Arrays) -> Arrays:
        """Run the step; return its outputs by name."""
        narrow = self._narrow
        given = {
            _WIDE.format(name) if name in narrow else name: np.asarray(array, np.float32)
            if name in narrow
            else array
            for name, array in feeds.items()
            if name in self.wanted
        }
        asked = [_WIDE.format(name) if name in narrow else name for name in self.names]
        found = map(np.asarray, self.session.run(asked, given))
        return {
            name: array.astype(ml_dtypes.bfloat16) if name in narrow else array
            for name, array in zip(self.names, found, strict=True)
        }


def _without_bfloat16(model: ModelProto) -> tuple[ModelProto, frozenset[str]]:
    """Return (the model with float32 in place of bfloat16 inputs and outputs, their names).

    ONNX Runtime exchanges no bfloat16 with numpy. The added casts are exact.
    """

    def narrow(ends: Iterable[ValueInfoProto]) -> list[str]:
        kinds = {info.name: info.type.tensor_type.elem_type for info in ends}
        return [name for name, kind in kinds.items() if kind == TensorProto.BFLOAT16]

    given, asked = narrow(model.graph.input), narrow(model.graph.output)
    names = frozenset((*given, *asked))
    if not names:
        return model, names
    made = ModelProto()
    made.CopyFrom(model)
    graph = made.graph
    first = [
        helper.make_node("Cast", [_WIDE.format(name)], [name], to=TensorProto.BFLOAT16)
        for name in given
    ]
    last = [
        helper.make_node("Cast", [name], [_WIDE.format(name)], to=TensorProto.FLOAT)
        for name in asked
    ]
    for info in (*graph.input, *graph.output):
        if info.name in names:
            info.name = _WIDE.format(info.name)
            info.type.tensor_type.elem_type = TensorProto.FLOAT
    nodes = [*first, *graph.node, *last]
    del graph.node[:]
    graph.node.extend(nodes)
    return made, names

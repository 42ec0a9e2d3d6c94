"""An ONNX Runtime session of the exported step, fed from numpy."""

from __future__ import annotations

from planner.export.checking.eager import Arrays
from planner.export.write.lower import LoweredStep
from planner.runtime.arrays import run_arrays


class GraphSession:
    """A session of the exported step, with its random tensors as inputs."""

    def __init__(self, graph: LoweredStep) -> None:
        import onnxruntime as ort

        options = ort.SessionOptions()
        options.log_severity_level = 4
        # Spinning threads take cores from PyTorch and other processes.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        self.graph = graph
        self.session = ort.InferenceSession(
            graph.model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        self.names = [output.name for output in graph.model.graph.output]
        self.wanted = {given.name for given in graph.model.graph.input}

    def run(self, feeds: Arrays) -> Arrays:
        """Run the step; return its outputs by name."""
        given = {name: array for name, array in feeds.items() if name in self.wanted}
        return dict(zip(self.names, run_arrays(self.session, given, self.names), strict=True))

"""planner: a static memory planner and graph optimizer for ONNX training graphs."""

__version__ = "0.1.0"

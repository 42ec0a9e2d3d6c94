"""ONNX Runtime's graph optimizers: what they make of a file, and how a plan holds against them."""

"""Lowering of a traced graph to an ONNX file: nodes, types, and the file."""

"""Lower a traced graph to an ONNX file: nodes, types, and the file."""

"""From a traced graph to an ONNX file: nodes, types, the file."""

"""Make ONNX Runtime run a file in the planned order."""

"""ONNX Runtime's graph optimizers: their effect on a file, and plans that withstand them."""

"""Make a training graph from a forward ONNX model, without PyTorch."""

"""Training graphs from a forward ONNX model, without PyTorch."""

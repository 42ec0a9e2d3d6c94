"""ONNX Runtime's WebGPU provider, and a software device for it."""

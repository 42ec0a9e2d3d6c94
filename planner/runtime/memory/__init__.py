"""ONNX Runtime's buffers and arena, predicted and measured."""

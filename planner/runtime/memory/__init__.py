"""Predicted and measured bytes of ONNX Runtime's buffers and arena."""

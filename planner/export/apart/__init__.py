"""Operators and functions that are taken apart into those that ONNX has."""

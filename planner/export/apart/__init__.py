"""Decompositions of operators and functions into those that ONNX has."""

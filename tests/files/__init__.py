"""ONNX files that others made: what of them is planned (`python -m tests.files`)."""

"""The model of ONNX Runtime: order and arena prediction, sessions, verification."""

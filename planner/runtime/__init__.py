"""Running models on ONNX Runtime: predicted order and arena, sessions, timing, verification."""

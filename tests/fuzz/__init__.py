"""Random graphs against real ONNX Runtime: see `tests.fuzz.properties` for what is asked of each."""

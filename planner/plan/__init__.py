"""The planning problem, its solvers and its simulator. Knows neither onnx nor onnxruntime."""

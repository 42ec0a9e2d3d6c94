"""Load and save ONNX models; nothing else in planner opens a model file."""

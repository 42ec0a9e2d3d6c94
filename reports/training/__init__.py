"""How planner does on onnxruntime-training's artifacts: `python -m reports.training`."""

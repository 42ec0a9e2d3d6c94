"""The training graph: operations, tensors, schedule, live ranges."""

"""One module for each question that a caller can ask planner."""

"""One module for each question that is asked of planner."""

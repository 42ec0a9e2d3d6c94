"""Values that stay in place from step to step: `planner.bind`."""

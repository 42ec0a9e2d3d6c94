"""The straight line: prepare, formulate, plan, assemble. `planner.api` drives it."""

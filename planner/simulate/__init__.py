"""The judge: replay a schedule, action by action. Imports only `planner.plan`."""

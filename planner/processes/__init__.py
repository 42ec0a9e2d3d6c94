"""Processes of planner's own, and what is compiled in them."""

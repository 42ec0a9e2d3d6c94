"""Processes of planner's own."""

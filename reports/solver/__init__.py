"""Planner's solver measured: problems, the published methods written anew, and the tables."""

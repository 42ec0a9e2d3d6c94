"""Heuristic searches for plans: decode decisions, repair, evict, round, cut, anneal."""

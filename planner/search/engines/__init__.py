"""The heuristics as engines: each finds plans in one way, from a search state, until it is stopped."""

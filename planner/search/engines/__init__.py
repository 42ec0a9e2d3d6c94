"""The heuristics as engines: each finds plans from a search state in its own way."""

"""Plans by heuristics: decode decisions, repair, evict, round, cut, anneal."""

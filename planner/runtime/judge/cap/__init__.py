"""Runs in a pool of a given size: neither file, or the rewritten one alone, may fit it."""

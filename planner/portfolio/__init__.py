"""Which engine solves a problem, in which order, and for how long."""

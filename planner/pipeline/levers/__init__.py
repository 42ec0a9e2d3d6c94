"""Levers besides order, recompute and swap, and the choice of those that a plan uses."""

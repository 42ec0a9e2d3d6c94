"""Constraint programming over a part of a plan: exact where the part is the whole problem."""

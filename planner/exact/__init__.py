"""Constraint programming over a part of a plan: exact if the part is the whole problem."""

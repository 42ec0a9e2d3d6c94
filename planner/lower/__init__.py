"""Lowering: write a plan as a rewritten model."""

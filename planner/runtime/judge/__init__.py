"""Checks on runs of both models: numbers, order, bytes, a hard cap."""

"""Lowering of regions that run in chunks of rows."""

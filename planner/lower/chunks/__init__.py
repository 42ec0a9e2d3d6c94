"""Regions of a model that run in chunks of rows."""

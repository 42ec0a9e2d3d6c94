"""Predictions of a device's allocator and of the placement of nodes."""

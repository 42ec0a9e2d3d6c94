"""Reads and writes of parts of tensors by index, and their gradients."""

"""Picking and placing parts of tensors, and their gradients."""

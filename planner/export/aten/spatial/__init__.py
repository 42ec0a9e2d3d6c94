"""Convolutions, pooling and padding, and their gradients."""

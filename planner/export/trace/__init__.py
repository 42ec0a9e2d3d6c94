"""Trace a training step with PyTorch into one graph of its loss and gradients."""

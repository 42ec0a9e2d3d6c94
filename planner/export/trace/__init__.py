"""Trace of a training step by PyTorch into one graph of its loss and gradients."""

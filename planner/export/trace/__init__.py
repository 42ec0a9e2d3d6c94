"""A training step, traced by PyTorch into one graph of its loss and gradients."""

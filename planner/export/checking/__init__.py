"""Comparison of an exported step with PyTorch's: both are run."""

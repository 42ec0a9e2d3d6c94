"""Compare an exported step with PyTorch's by running both."""

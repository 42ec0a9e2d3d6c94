"""Whether an exported step is the one that PyTorch runs: both are run, and compared."""

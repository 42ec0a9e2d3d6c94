"""What was measured on a CUDA device; see `reports.cuda.__main__`."""

"""planner beside what a PyTorch user would pick instead; see `reports.peers.__main__`."""

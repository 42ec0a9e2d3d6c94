"""Questions about several budgets, sizes or devices; all use one search, `frontier.py`."""

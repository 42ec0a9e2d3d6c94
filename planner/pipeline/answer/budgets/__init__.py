"""Questions about several budgets, sizes or devices: all ask one search, `frontier.py`."""

"""Devices with a memory of their own: which node runs where, and runs on them."""

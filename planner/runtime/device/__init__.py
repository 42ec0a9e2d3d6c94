"""Devices with a memory of their own: placement of nodes, and runs."""

"""Offsets in one arena for buffers whose lives are known; knows nothing of plans."""

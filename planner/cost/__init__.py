"""Time per operation and per copied byte."""

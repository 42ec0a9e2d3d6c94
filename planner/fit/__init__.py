"""Fit a schedule into ONNX Runtime's arena: reorder it until the allocator, replayed, has room."""

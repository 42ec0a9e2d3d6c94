"""Training graphs from PyTorch: `export_training_graph`, and the lowering behind it.

`errors`, `inputs`, `emit`, `optim` and `files` need no PyTorch; the others do.
"""

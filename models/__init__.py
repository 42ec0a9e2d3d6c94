"""Real training graphs: PyTorch networks, traced with their gradients, as standard ONNX.

`python -m models.build NET -o FILE` builds one; `models.zoo` holds small ones, ready to run.
Reading the zoo needs numpy only; building needs PyTorch.
"""

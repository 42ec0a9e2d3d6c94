"""Training artifacts of onnxruntime-training 1.19.2, from forward models built without PyTorch.

Runs in an environment of its own, since that package is imported as `onnxruntime` too:

    python3.11 -m venv .venv-training
    .venv-training/bin/pip install -e ".[training]"
    .venv-training/bin/python -m models.artifacts gpt artifacts/gpt
"""

"""Train a PyTorch model with its step in ONNX: forward and backward there, the update here.

    python -m models.scripts.train_torch gpt --write gpt.onnx
    python -m models.scripts.train_torch gpt --model gpt.onnx --steps 100

Prints one loss a step, as a hexadecimal float, then the median of the steps' times. The parameters
start as PyTorch draws them; without `--model` the step is exported first.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import onnxruntime
import torch
import torch.nn.functional as F
from torch import nn

from models.nets import GPT, MLP, BERTClassifier, resnet18
from models.recipes import language_loss
from models.scripts.data import Batches, digits, text

CHARACTERS = 128
Net = tuple[nn.Module, Batches, Callable[..., torch.Tensor]]


def mlp() -> Net:
    """Build an MLP for digits as rows of pixels."""
    return MLP(hidden=128, layers=5), digits((512, 64)), F.cross_entropy


def resnet() -> Net:
    """Build a ResNet for digits as images of 64 by 64."""
    return resnet18(width=8, classes=10), digits((16, 3, 64, 64)), F.cross_entropy


def encoder() -> Net:
    """Build an encoder that predicts the character after 64 others."""
    size = {"vocabulary": CHARACTERS, "positions": 64, "width": 64, "heads": 2, "layers": 2}
    module = BERTClassifier(**size, classes=CHARACTERS)
    return module, text((16, 64), each=False), F.cross_entropy


def gpt() -> Net:
    """Build a GPT that predicts the character after each of 64."""
    module = GPT(vocabulary=CHARACTERS, positions=64, width=64, heads=2, layers=2)
    return module, text((16, 64), each=True), language_loss


NETS: dict[str, Callable[[], Net]] = {
    "mlp": mlp,
    "resnet18": resnet,
    "encoder": encoder,
    "gpt": gpt,
}


def make(name: str) -> Net:
    """Build the network, always with the same parameters."""
    torch.manual_seed(0)
    return NETS[name]()


def export(name: str, path: Path) -> None:
    """Write the step as an ONNX model."""
    from planner import export_training_graph

    module, batches, loss = make(name)
    inputs, targets = (torch.from_numpy(array) for array in next(batches))
    export_training_graph(module, (inputs,), loss, targets={"targets": targets}).save(path)


def main(arguments: Sequence[str] | None = None) -> None:
    """Export a model if none is given, then train."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("net", choices=NETS)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--write", type=Path, help="write the exported step here, and stop")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--lr", type=float, default=0.01)
    args = parser.parse_args(arguments)
    if args.write:
        export(args.net, args.write)
        return
    with tempfile.TemporaryDirectory() as folder:
        path = args.model or Path(folder) / "step.onnx"
        if args.model is None:
            export(args.net, path)
        train(args.net, path, steps=args.steps, lr=args.lr)


def train(name: str, path: Path, *, steps: int, lr: float) -> None:
    """Train by stochastic gradient descent with momentum, in numpy."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1  # so that two runs are equal, bit for bit
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    module, batches, _ = make(name)
    tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    names = [item.name for item in session.get_inputs()]
    values = {k: tensors[k].detach().numpy().copy() for k in names if k in tensors}
    momentum = {k: np.zeros_like(v) for k, v in values.items()}
    data, labels, *_ = names
    outputs = [output.name for output in session.get_outputs()]
    times: list[float] = []
    for _ in range(steps):
        batch = dict(zip((data, labels), next(batches), strict=True))
        began = time.perf_counter()
        results = dict(zip(outputs, session.run(outputs, {**values, **batch}), strict=True))
        times.append(time.perf_counter() - began)
        for key in values:
            if f"{key}_grad" in results:
                momentum[key] = 0.9 * momentum[key] + results[f"{key}_grad"]
                values[key] = values[key] - np.float32(lr) * momentum[key]
            elif f"{key}_new" in results:
                values[key] = results[f"{key}_new"]
        print(float(results["loss"]).hex())
    print(f"median {statistics.median(times):.6f} s")


if __name__ == "__main__":
    main()

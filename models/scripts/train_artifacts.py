"""Train on onnxruntime-training's artifacts with its Python API.

    python models/scripts/train_artifacts.py artifacts/gpt --task each --steps 100

`--model` names the training model where it is not the folder's own. Prints one loss a step, as a
hexadecimal float; at the end a checkpoint is saved and the model is exported for inference.
"""

from __future__ import annotations

import argparse
import sys
import time
import types
from collections.abc import Iterator
from pathlib import Path

import numpy as np

# onnxruntime.training imports PyTorch for one subpackage, which training does not need
sys.modules.setdefault("onnxruntime.training.optim", types.ModuleType("onnxruntime.training.optim"))
from onnxruntime import SessionOptions  # noqa: E402
from onnxruntime.training.api import CheckpointState, Module, Optimizer  # noqa: E402

CONTEXT = 64


def digits(task: str, batch: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield batches of scikit-learn's digits: rows of pixels, or images enlarged four times."""
    from sklearn.datasets import load_digits

    data = load_digits()
    pixels = (data.data / 8.0 - 1.0).astype(np.float32)
    if task == "images":
        pixels = np.kron(pixels.reshape(-1, 1, 8, 8), np.ones((1, 1, 4, 4), np.float32))
    random = np.random.default_rng(0)
    while True:
        rows = random.choice(len(pixels), batch, replace=False)
        yield pixels[rows], data.target[rows].astype(np.int64)


def text(task: str, batch: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield batches of characters of Python's language reference, and the characters that follow."""
    from pydoc_data.topics import topics

    letters = "".join(topics[name] for name in sorted(topics)).encode("ascii", "replace")
    ids = np.frombuffer(letters, np.uint8).astype(np.int64) & 127
    random = np.random.default_rng(0)
    while True:
        starts = random.integers(0, len(ids) - CONTEXT - 1, batch)
        rows = np.stack([ids[s : s + CONTEXT + 1] for s in starts])
        after = rows[:, 1:].reshape(-1) if task == "each" else rows[:, -1]
        yield np.ascontiguousarray(rows[:, :-1]), np.ascontiguousarray(after)


def main() -> None:
    """Train, save a checkpoint, and export for inference."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("artifacts", type=Path)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--task", choices=["digits", "images", "next", "each"], default="digits")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--threads", type=int, help="one makes two runs equal, bit for bit")
    parser.add_argument("--output", type=Path)
    args = parser.parse_args()
    output = args.output or args.artifacts

    options = SessionOptions()
    if args.threads:
        options.intra_op_num_threads = args.threads
    state = CheckpointState.load_checkpoint(str(args.artifacts / "checkpoint"))
    module = Module(
        str(args.model or args.artifacts / "training_model.onnx"),
        state,
        str(args.artifacts / "eval_model.onnx"),
        session_options=options,
    )
    optimizer = Optimizer(str(args.artifacts / "optimizer_model.onnx"), module)
    optimizer.set_learning_rate(1e-3)

    batches = (text if args.task in ("next", "each") else digits)(args.task, args.batch)
    began = time.perf_counter()
    module.train()
    for _ in range(args.steps):
        loss = module(*next(batches))
        print(float(loss).hex())
        optimizer.step()
        module.lazy_reset_grad()
    print(f"seconds {time.perf_counter() - began:.3f}")

    module.eval()
    print("eval", float(module(*next(batches))).hex())
    CheckpointState.save_checkpoint(state, str(output / "trained"))
    module.export_model_for_inferencing(str(output / "inference.onnx"), ["output"])


if __name__ == "__main__":
    main()

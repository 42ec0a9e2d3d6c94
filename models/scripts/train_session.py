"""Train on a model that holds the whole step, optimizer included, with an InferenceSession.

    python -m models.scripts.train_session --model mlp_adamw.onnx --steps 100

Prints one loss a step, as a hexadecimal float, then the median of the steps' times. The first two
inputs are the data and the labels; a parameter or state `x` is an input with an output `x_new`.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnxruntime

from models.scripts.data import batches_for

NEW = "_new"


def initial(name: str, shape: Sequence[int]) -> np.ndarray:
    """Return an initial value: He's for matrices and kernels, ones for scales, zeros for the rest."""
    if name.endswith(("_m", "_v", "_momentum")):
        return np.zeros(shape, np.float32)
    if len(shape) < 2:
        return np.full(shape, float(name.endswith(("weight", "running_var"))), np.float32)
    random = np.random.default_rng(zlib.crc32(name.encode()))
    std = math.sqrt(2 / math.prod(shape[1:]))
    return (random.standard_normal(shape) * std).astype(np.float32)


def main(arguments: Sequence[str] | None = None) -> None:
    """Train."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--lr", type=float, default=1e-3)
    args = parser.parse_args(arguments)

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1  # so that two runs are equal, bit for bit
    session = onnxruntime.InferenceSession(
        str(args.model), options, providers=["CPUExecutionProvider"]
    )
    outputs = [output.name for output in session.get_outputs()]
    data, labels, *others = session.get_inputs()
    values = {
        item.name: np.zeros(item.shape, np.int64)  # batches that a batch norm has seen
        if "int64" in item.type
        else initial(item.name, item.shape)
        for item in others
    }
    values["lr"] = np.array(args.lr, np.float32)

    batches = batches_for(data.shape, labels.shape, is_text="int" in data.type)
    times: list[float] = []
    for step in range(1, args.steps + 1):
        if "step" in values:
            values["step"] = np.array(step, np.float32)
        batch = dict(zip((data.name, labels.name), next(batches), strict=True))
        began = time.perf_counter()
        results = dict(zip(outputs, session.run(outputs, {**values, **batch}), strict=True))
        times.append(time.perf_counter() - began)
        values |= {k.removesuffix(NEW): v for k, v in results.items() if k.endswith(NEW)}
        print(float(results["loss"]).hex())
    print(f"median {statistics.median(times):.6f} s")


if __name__ == "__main__":
    main()

"""The forward models, by name. At their sizes, activations and not parameters fill the memory."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import TensorProto

from models.artifacts.forward import Forward

CLASSES, PIXELS = 10, 64
VOCABULARY = 128  # ASCII
CONTEXT = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Net:
    """A forward model, the names of its trained parameters, and its training data.

    Attributes:
        task: "digits" (rows of pixels), "images" (of 32 by 32), "next" (the character after a text)
            or "each" (the character after every character of a text).
    """

    model: onnx.ModelProto
    parameters: tuple[str, ...]
    task: str


def mlp(batch: int | str = 512) -> Net:
    """Build an MLP with 8 hidden layers of 96, for scikit-learn's digits."""
    f = Forward(seed=1)
    x, width = f.input("x", [batch, PIXELS]), PIXELS
    for layer in range(8):
        x, width = f.op("Relu", f.gemm(x, f"layer{layer}", width, 96)), 96
    logits = f.gemm(x, "head", width, CLASSES)
    return Net(model=f.model(logits, [batch, CLASSES]), parameters=(*f.parameters,), task="digits")


def resnet18(batch: int | str = 32, width: int = 8, depths: tuple[int, ...] = (2, 2, 2, 2)) -> Net:
    """Build a ResNet-18 of an eighth of its width, for digits enlarged to 32 by 32."""
    f = Forward(seed=2)
    x = f.input("x", [batch, 1, 32, 32])
    x = f.op("Relu", f.batch_norm(f.conv(x, "stem", 1, width, 7, 2), "stem_norm", width))
    x = f.op("MaxPool", x, kernel_shape=[3, 3], strides=[1, 1], pads=[1, 1, 1, 1])
    channels = width
    for stage, depth in enumerate(depths):
        for block in range(depth):
            to, name = width << stage, f"stage{stage}.{block}"
            stride = 2 if stage and not block else 1
            y = f.conv(x, f"{name}.conv1", channels, to, 3, stride)
            y = f.op("Relu", f.batch_norm(y, f"{name}.norm1", to))
            y = f.batch_norm(f.conv(y, f"{name}.conv2", to, to, 3), f"{name}.norm2", to)
            if stride != 1 or channels != to:
                x = f.conv(x, f"{name}.short", channels, to, 1, stride)
                x = f.batch_norm(x, f"{name}.short_norm", to)
            x, channels = f.op("Relu", f.op("Add", x, y)), to
    x = f.op("Flatten", f.op("GlobalAveragePool", x), axis=1)
    logits = f.gemm(x, "head", channels, CLASSES)
    return Net(model=f.model(logits, [batch, CLASSES]), parameters=(*f.parameters,), task="images")


def encoder(batch: int = 16) -> Net:
    """Build a BERT-like encoder that reads a text both ways and predicts the next character."""
    f = Forward(seed=3)
    x = _transformer(f, batch, layers=3, causal=False)
    first = f.op("Gather", x, f.constant("first", np.array(0, np.int64)), axis=1)
    pooled = f.op("Tanh", f.gemm(first, "pooler", _WIDTH, _WIDTH))
    logits = f.gemm(pooled, "head", _WIDTH, VOCABULARY)
    shape = [batch, VOCABULARY]
    return Net(model=f.model(logits, shape), parameters=(*f.parameters,), task="next")


def gpt(batch: int = 16) -> Net:
    """Build a GPT that predicts every next character."""
    f = Forward(seed=4)
    x = _transformer(f, batch, layers=3, causal=True)
    rows = f.op("Reshape", x, f.ints(-1, _WIDTH))
    logits = f.gemm(rows, "head", _WIDTH, VOCABULARY)
    shape = [batch * CONTEXT, VOCABULARY]
    return Net(model=f.model(logits, shape), parameters=(*f.parameters,), task="each")


_WIDTH, _HEADS = 64, 4


def _transformer(f: Forward, batch: int, *, layers: int, causal: bool) -> str:
    """Add embeddings and pre-norm blocks: characters [batch, CONTEXT] -> [batch, CONTEXT, width]."""
    ids = f.input("x", [batch, CONTEXT], TensorProto.INT64)
    table = f.parameter("token.weight", (VOCABULARY, _WIDTH), 0.1)
    place = f.parameter("place.weight", (CONTEXT, _WIDTH), 0.1)
    where = f.constant("places", np.arange(CONTEXT, dtype=np.int64)[None])
    x = f.op("Add", f.op("Gather", table, ids, axis=0), f.op("Gather", place, where, axis=0))
    for layer in range(layers):
        name = f"block{layer}"
        y = f.layer_norm(x, f"{name}.norm1", _WIDTH)
        x = f.op("Add", x, _attention(f, y, name, batch, causal=causal))
        y = f.layer_norm(x, f"{name}.norm2", _WIDTH)
        y = f.gelu(f.linear(y, f"{name}.up", _WIDTH, 4 * _WIDTH))
        x = f.op("Add", x, f.linear(y, f"{name}.down", 4 * _WIDTH, _WIDTH))
    return f.layer_norm(x, "norm", _WIDTH)


def _attention(f: Forward, x: str, name: str, batch: int, *, causal: bool) -> str:
    head = _WIDTH // _HEADS
    split = f.ints(batch, CONTEXT, _HEADS, head)

    def heads(part: str, perm: list[int]) -> str:
        y = f.op("Reshape", f.linear(x, f"{name}.{part}", _WIDTH, _WIDTH), split)
        return f.op("Transpose", y, perm=perm)

    scores = f.op("MatMul", heads("query", [0, 2, 1, 3]), heads("key", [0, 2, 3, 1]))
    scores = f.op("Mul", scores, f.scalar(1 / math.sqrt(head)))
    if causal:
        mask = f.constant("mask", np.tril(np.ones((1, 1, CONTEXT, CONTEXT), bool)))
        scores = f.op("Where", mask, scores, f.scalar(-1e9))
    y = f.op("MatMul", f.op("Softmax", scores, axis=-1), heads("value", [0, 2, 1, 3]))
    y = f.op("Reshape", f.op("Transpose", y, perm=[0, 2, 1, 3]), f.ints(batch, CONTEXT, _WIDTH))
    return f.linear(y, f"{name}.out", _WIDTH, _WIDTH)


NETS: dict[str, Callable[[], Net]] = {
    "mlp": mlp,
    "resnet18": resnet18,
    "encoder": encoder,
    "gpt": gpt,
}

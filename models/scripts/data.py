"""Real data for the training scripts: scikit-learn's digits, and the text of Python's help."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

Batches = Iterator[tuple[np.ndarray, np.ndarray]]


def digits(shape: Sequence[int], *, pixelwise: bool = False) -> Batches:
    """Yield endless batches: rows of pixels, [batch, 64], or images, [batch, channels, side, side].

    Args:
        pixelwise: the target is whether each pixel is ink, [batch, side, side], not the digit.
    """
    from sklearn.datasets import load_digits

    data = load_digits()
    pixels = (data.data / 8.0 - 1.0).astype(np.float32)
    if len(shape) == 4:
        scale = shape[3] // 8
        images = pixels.reshape(-1, 1, 8, 8).repeat(scale, axis=2).repeat(scale, axis=3)
        pixels = images.repeat(shape[1], axis=1)
    random = np.random.default_rng(0)
    while True:
        rows = random.choice(len(pixels), shape[0], replace=False)
        targets = pixels[rows, 0] > 0 if pixelwise else data.target[rows]
        yield pixels[rows], targets.astype(np.int64)


def text(shape: Sequence[int], *, each: bool) -> Batches:
    """Yield endless batches of characters, [batch, length], with each next character or the last."""
    from pydoc_data.topics import topics

    letters = "".join(topics[name] for name in sorted(topics)).encode("ascii", "replace")
    ids = np.frombuffer(letters, np.uint8).astype(np.int64) & 127
    batch, length = shape
    random = np.random.default_rng(0)
    while True:
        starts = random.integers(0, len(ids) - length - 1, batch)
        rows = np.stack([ids[start : start + length + 1] for start in starts])
        yield rows[:, :-1].copy(), (rows[:, 1:] if each else rows[:, -1]).copy()


def batches_for(inputs: Sequence[int], targets: Sequence[int], *, is_text: bool) -> Batches:
    """Return the data that fits the given shapes."""
    if is_text:
        return text(inputs, each=len(targets) == 2)
    return digits(inputs, pixelwise=len(targets) == 3)

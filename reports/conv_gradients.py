"""The ways to write a convolution's gradients, timed over the layers of common networks.

    python -m reports.conv_gradients              every layer
    python -m reports.conv_gradients stem up2     those whose name has one of these words
    python -m reports.conv_gradients --networks   whole steps beside PyTorch eager, too (minutes)

Each form is a graph of its own, written with the exporter's builder and run on ONNX Runtime's CPU
provider with two threads: the exporter's forms (`planner/export/aten/spatial/conv_gradients.py`), and
some others. All forms of a layer are compared with autograd, then run in turns; the least times count,
and are given as ratios to the plainest form's. Rows go to `conv_gradients.json` beside this file, and
`conv_gradients.md` is written from them.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import torch
from torch import fx

from planner.cost.measured import processor
from planner.export.aten.registry import Lowering, shape_of
from planner.export.aten.spatial import conv
from planner.export.aten.spatial.conv_gradients import (
    Convolution,
    as_convolution,
    as_transposed,
    by_places,
    flat,
    image_gradient,
    kernel_gradient,
    met_by,
    padded,
    spatial,
    with_turned_kernel,
)
from planner.export.write.emit import Builder, Value, value_info
from reports.peers.networks import NETWORKS
from reports.peers.plans import export
from reports.peers.pytorch import EAGER, TorchStep
from reports.peers.runtime import OrtStep, cpu_peak_bytes

FOLDER = Path(__file__).parent
RESULT, PAGE = FOLDER / "conv_gradients.json", FOLDER / "conv_gradients.md"
THREADS, ROUNDS, STEPS = 2, 12, 8
MIB = 2**20
FLOAT = np.dtype(np.float32)
Form = Callable[[Lowering, Convolution], Value]


@dataclass(frozen=True, kw_only=True)
class Layer:
    """A convolution: an image of `size` along each axis, `channels` to `filters`."""

    batch: int
    channels: int
    size: Sequence[int]
    filters: int
    kernel: int
    stride: int = 1
    padding: int = 0
    groups: int = 1

    @property
    def made(self) -> list[int]:
        """Sizes of the small image."""
        return [(n + 2 * self.padding - self.kernel) // self.stride + 1 for n in self.size]

    @property
    def text(self) -> str:
        size = "×".join(map(str, self.size))
        kernel = "×".join([str(self.kernel)] * len(self.size))
        stride = f", stride {self.stride}" if self.stride > 1 else ""
        groups = f", {self.groups} groups" if self.groups > 1 else ""
        return f"{self.batch}×{self.channels}×{size} → {self.filters}, {kernel}{stride}{groups}"


def _layer(batch: int, channels: int, size: Sequence[int], filters: int, *rest: int) -> Layer:
    kernel, stride, padding, groups = (*rest, *(1, 1, 0, 1)[len(rest) :])
    return Layer(
        batch=batch,
        channels=channels,
        size=size,
        filters=filters,
        kernel=kernel,
        stride=stride,
        padding=padding,
        groups=groups,
    )


LAYERS: Mapping[str, Layer] = {
    "resnet stem": _layer(16, 3, (128, 128), 64, 7, 2, 3),
    "resnet 64": _layer(16, 64, (32, 32), 64, 3, 1, 1),
    "resnet 256": _layer(16, 256, (8, 8), 256, 3, 1, 1),
    "resnet 512": _layer(16, 512, (4, 4), 512, 3, 1, 1),
    "resnet strided": _layer(16, 128, (32, 32), 128, 3, 2, 1),
    "resnet pointwise": _layer(16, 64, (32, 32), 256),
    "resnet pointwise, deep": _layer(16, 2048, (4, 4), 512),
    "resnet shortcut": _layer(16, 256, (32, 32), 512, 1, 2),
    "resnext": _layer(16, 128, (32, 32), 128, 3, 1, 1, 32),
    "unet first": _layer(2, 3, (256, 256), 32, 3, 1, 1),
    "unet 32": _layer(2, 32, (256, 256), 32, 3, 1, 1),
    "unet 64 to 32": _layer(2, 64, (256, 256), 32, 3, 1, 1),
    "unet 128": _layer(2, 128, (64, 64), 128, 3, 1, 1),
    "unet 512": _layer(2, 512, (16, 16), 512, 3, 1, 1),
    "unet up (its large image is the result)": _layer(2, 64, (128, 128), 128, 2, 2),
    "few channels, 8": _layer(8, 8, (64, 64), 32, 3, 1, 1),
    "few filters, 3": _layer(8, 64, (64, 64), 3, 3, 1, 1),
    "five": _layer(8, 64, (32, 32), 64, 5, 1, 2),
    "mobilenet depthwise": _layer(16, 96, (32, 32), 96, 3, 1, 1, 96),
    "mobilenet depthwise, strided": _layer(16, 96, (32, 32), 96, 3, 2, 1, 96),
    "convnext depthwise": _layer(8, 96, (32, 32), 96, 7, 1, 3, 96),
    "convnext downsampling": _layer(8, 96, (56, 56), 192, 2, 2),
    "convnext patches": _layer(8, 3, (224, 224), 96, 4, 4),
    "vit patches": _layer(8, 3, (224, 224), 384, 16, 16),
    "sound, 3": _layer(8, 64, (4096,), 64, 3, 1, 1),
    "sound, strided": _layer(8, 64, (4096,), 128, 4, 2, 1),
    "volume, 3": _layer(1, 32, (24, 24, 24), 32, 3, 1, 1),
    "volume, 2": _layer(1, 32, (32, 32, 32), 64, 2, 2),
}


# -- forms that are not the exporter's -------------------------------------------------------------


def one_product(low: Lowering, own: Convolution) -> Value:
    """The parts of the image that all places meet, side by side, and one product."""
    turned, count = [1, 0, *own.axes], len(own.kernel)
    left = flat(low, low.transpose(low.value(own.small), turned, "s"), own.filters, "left")
    image = low.transpose(padded(low, own), turned, "l")
    places = itertools.product(*map(range, own.kernel))
    parts = [flat(low, met_by(low, own, image, at, "met"), own.channels, "part") for at in places]
    right = low.op("Concat", *parts, tag="right", axis=0) if len(parts) > 1 else parts[0]
    product = low.op("Gemm", left, right, tag="product", transB=1)
    whole = low.reshape(product, [own.filters, *own.kernel, own.channels], "whole")
    return low.transpose(whole, [0, count + 1, *range(1, count + 1)], "dweight")


def over_channels(low: Lowering, own: Convolution) -> Value:
    """One convolution, whose image has channels as one more axis of space, and the batch as channels."""
    batch, channels, *space = shape_of(own.large)
    image = low.reshape(low.value(own.large), [1, batch, channels, *space], "image")
    turned = low.transpose(low.value(own.small), [1, 0, *own.axes], "turned")
    kernel = low.reshape(turned, [own.filters, batch, 1, *spatial(own.small)], "kernel")
    product = low.op(
        "Conv",
        image,
        kernel,
        tag="product",
        kernel_shape=[1, *spatial(own.small)],
        strides=[1, *own.dilations],
        dilations=[1, *own.strides],
        pads=[0, *own.padding, 0, *own.padding],
    )
    starts, axes = [0] * len(own.axes), [axis + 1 for axis in own.axes]
    bounds = (low.integers(*numbers) for numbers in (starts, own.kernel, axes))
    return low.reshape(low.op("Slice", product, *bounds, tag="cut"), shape_of(own.weight), "dw")


def shuffled(low: Lowering, own: Convolution) -> Value:
    """A strided image's gradient: its phases as channels of one convolution, then DepthToSpace."""
    (stride, _), (pad, _), (kernel, _) = own.strides, own.padding, own.kernel
    before = -pad % stride
    taps = -(-(kernel + before) // stride)
    after = taps * stride - kernel - before
    widths = low.integers(0, 0, before, before, 0, 0, after, after)
    weight = low.op("Pad", low.value(own.weight), widths, low.scalar(0), tag="wide")
    shape = [own.filters, own.channels, taps, stride, taps, stride]
    weight = low.reshape(weight, shape, "split")
    last, end = low.integers(-1, -1), low.integers(-(1 << 31), -(1 << 31))
    weight = low.op("Slice", weight, last, end, low.integers(2, 4), last, tag="turned")
    weight = low.transpose(weight, [3, 5, 1, 0, 2, 4], "swapped")
    weight = low.reshape(weight, [-1, own.filters, taps, taps], "weight")
    start = taps - 1 - (pad + before) // stride
    sizes = zip(spatial(own.large), spatial(own.small), strict=True)
    ends = [-(-large // stride) - 1 + taps - start - small for large, small in sizes]
    phases = low.op(
        "Conv",
        low.value(own.small),
        weight,
        tag="phases",
        kernel_shape=[taps, taps],
        pads=[start, start, *ends],
    )
    return low.op("DepthToSpace", phases, tag="dx", blocksize=stride, mode="DCR")


KERNELS: Mapping[str, Form] = {
    "convolution": as_convolution,
    "products": by_places,
    "one product": one_product,
    "over channels": over_channels,
}
IMAGES: Mapping[str, Form] = {
    "transposed": as_transposed,
    "turned kernel": with_turned_kernel,
    "shuffled": shuffled,
}


def forms_of(layer: Layer, gradient: str) -> Iterator[tuple[str, Form]]:
    """Those that can be written for a layer."""
    if gradient == "kernel":
        yield "convolution", as_convolution
        if layer.groups == 1:
            places = layer.kernel ** len(layer.size)
            yield from ((n, KERNELS[n]) for n in ("products", "one product") if places <= 64)
            if len(layer.size) == 2:
                yield "over channels", over_channels
        return
    yield "transposed", as_transposed
    if layer.stride == 1:
        yield "turned kernel", with_turned_kernel
    elif layer.groups == 1 and len(layer.size) == 2 and not layer.size[0] % layer.stride:
        yield "shuffled", shuffled


# -- measuring -------------------------------------------------------------------------------------


def lowered(layer: Layer, gradient: str, form: Form) -> tuple[bytes, int, Any]:
    """A model of one gradient: bytes, nodes, and the value that the form made."""
    axes, graph, builder = len(layer.size), fx.Graph(), Builder()
    shapes = shapes_of(layer)
    low = Lowering(builder, {})
    nodes: dict[str, fx.Node] = {}
    for name, shape in shapes.items():
        nodes[name] = node = graph.placeholder(name)
        node.meta["val"] = torch.empty(shape, device="meta")
        low.values[node] = builder.reserve(name)
    low.node = nodes["weight" if gradient == "kernel" else "large"]
    own = Convolution(
        **nodes,
        strides=[layer.stride] * axes,
        padding=[layer.padding] * axes,
        dilations=[1] * axes,
        groups=layer.groups,
    )
    made = form(low, own)
    builder.call(made, "out")
    read = ("large", "small") if gradient == "kernel" else ("small", "weight")
    inputs = [value_info(name, FLOAT, shapes[name]) for name in read]
    model = builder.finish("form", inputs, [value_info("out", FLOAT, shape_of(low.node))])
    return model.SerializeToString(), len(model.graph.node), [n.op_type for n in model.graph.node]


def shapes_of(layer: Layer) -> dict[str, list[int]]:
    kernel = [layer.kernel] * len(layer.size)
    return {
        "large": [layer.batch, layer.channels, *layer.size],
        "small": [layer.batch, layer.filters, *layer.made],
        "weight": [layer.filters, layer.channels // layer.groups, *kernel],
    }


def _opened(model: bytes) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = THREADS, 3
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def measured(layer: Layer, gradient: str) -> dict[str, Any]:
    """Least microseconds and nodes by form, and which form the exporter takes."""
    torch.set_num_threads(THREADS)
    generator = np.random.default_rng(0)
    arrays = {
        name: generator.standard_normal(shape, np.float32)
        for name, shape in shapes_of(layer).items()
    }
    tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
    axes = len(layer.size)

    def eager() -> np.ndarray:
        wanted = [gradient == "image", gradient == "kernel", False]
        results = torch.ops.aten.convolution_backward(
            tensors["small"], tensors["large"], tensors["weight"], [layer.filters],
            [layer.stride] * axes, [layer.padding] * axes, [1] * axes, False, [0] * axes,
            layer.groups, wanted,
        )  # fmt: skip
        return results[0 if wanted[0] else 1].numpy()

    expected, runs, nodes = eager(), {"eager": eager}, {}
    chosen_form = kernel_gradient if gradient == "kernel" else image_gradient
    *_, chosen_kinds = lowered(layer, gradient, chosen_form)
    chosen = ""
    for name, form in forms_of(layer, gradient):
        model, nodes[name], kinds = lowered(layer, gradient, form)
        chosen = name if kinds == chosen_kinds and not chosen else chosen
        session = _opened(model)
        feeds = {item.name: arrays[item.name] for item in session.get_inputs()}
        runs[name] = lambda session=session, feeds=feeds: session.run(["out"], feeds)[0]
        found = runs[name]()
        apart = np.linalg.norm(found - expected) / np.linalg.norm(expected)
        if not apart < 1e-4:
            raise AssertionError(f"{layer.text}: {name} is off by {apart:.1e}")
    least = dict.fromkeys(runs, float("inf"))
    for _ in range(ROUNDS):
        for name, run in runs.items():
            start = time.perf_counter()
            run()
            least[name] = min(least[name], time.perf_counter() - start)
    times = {name: round(seconds * 1e6) for name, seconds in least.items()}
    return {"layer": layer.text, "least_us": times, "nodes": nodes, "chosen": chosen}


# -- whole steps -----------------------------------------------------------------------------------


@contextmanager
def plainest() -> Iterator[None]:
    """The exporter with one form for every kernel and one for every image."""
    held = conv.kernel_gradient, conv.image_gradient
    conv.kernel_gradient, conv.image_gradient = as_convolution, as_transposed
    try:
        yield
    finally:
        conv.kernel_gradient, conv.image_gradient = held


def step_row(name: str) -> dict[str, Any]:
    """A network's step in PyTorch eager, and exported with the plainest forms and the chosen ones."""
    network, least, rows = NETWORKS[name], {}, {}
    with tempfile.TemporaryDirectory(prefix="planner-conv-") as text:
        folder = Path(text)
        feeds, models = folder / "feeds.npz", {n: folder / f"{n}.onnx" for n in ("plain", "chosen")}
        with plainest():
            rows["plain"] = export(network, models["plain"])
        rows["chosen"] = export(network, models["chosen"])
        eager = TorchStep(network, EAGER, "cpu", THREADS)
        np.savez(feeds, **eager.feeds())
        steps: dict[str, Any] = {n: OrtStep(m, feeds, "cpu", THREADS) for n, m in models.items()}
        steps = {"eager": eager, **steps}
        for turn in range(STEPS + 1):
            for kind, step in steps.items():
                seconds = step.seconds()
                if turn:
                    least[kind] = min(least.get(kind, seconds), seconds)
        for kind, model in models.items():
            rows[kind] |= cpu_peak_bytes(model, feeds, THREADS)
            rows[kind]["by_eager"] = least[kind] / least["eager"]
    return {"title": network.title, **rows}


# -- the page --------------------------------------------------------------------------------------


def page(results: Mapping[str, Any]) -> str:
    """The report."""
    lines = [
        "# A convolution's gradients, in several forms",
        "",
        f"onnxruntime {results['onnxruntime']}, PyTorch {results['torch']}, {results['machine']}, "
        f"{THREADS} threads; written by `python -m reports.conv_gradients`.",
        "",
        f"Least of {ROUNDS} runs in turns, by the time of the first form; the exporter's choice "
        "is bold. Every form's result was compared with autograd's. A form that cannot be written for a "
        "layer has no figure. *Eager*: PyTorch's `convolution_backward` for this gradient alone.",
        "",
    ]
    for gradient, forms in (("kernel", KERNELS), ("image", IMAGES)):
        heads = [*forms, "eager"]
        lines += [f"## The {gradient}'s gradient", "", f"| layer | | {' | '.join(heads)} | nodes |"]
        lines += ["|---|---|" + "---:|" * len(heads) + "---|"]
        for name, both in results["layers"].items():
            row = both[gradient]
            plain = row["least_us"][next(iter(forms))]
            cells = [_cell(row, head, plain) for head in heads]
            nodes = f"{row['nodes'].get(row['chosen'], '')}"
            lines.append(f"| {name} | {row['layer']} | {' | '.join(cells)} | {nodes} |")
        lines.append("")
    lines += [
        "*convolution*: the image with the small image's gradient as its kernel. *products*: one for "
        "each place in the kernel. *one product*: the same, side by side, which holds as many copies "
        "of the image as the kernel has places. *over channels*: one convolution, channels as one more "
        "axis. *transposed*: a transposed convolution. *turned kernel*: a convolution with it. "
        "*shuffled*: the phases of a stride as channels, then DepthToSpace. A grouped kernel's gradient "
        "has one form here.",
        "",
    ]
    if results.get("networks"):
        lines += [
            "## Whole steps",
            "",
            f"The networks of `reports.peers`, loss and all gradients: least of {STEPS} steps in turns, "
            "by PyTorch eager's. *Plain*: every gradient in the first form of the tables above.",
            "",
            "| network | plain: step | peak MiB, with scratch | nodes | chosen: step | peak | nodes |",
            "|---|---:|---:|---:|---:|---:|---:|",
        ]
        for row in results["networks"].values():
            cells = []
            for kind in ("plain", "chosen"):
                peak, scratch = (row[kind][key] / MIB for key in ("peak", "with_scratch"))
                cells += [f"×{row[kind]['by_eager']:.2f}", f"{peak:.1f}, {scratch:.1f}"]
                cells.append(f"{row[kind]['nodes']:,}")
            lines.append(f"| {row['title']} | {' | '.join(cells)} |")
        lines.append("")
    return "\n".join(lines)


def _cell(row: Mapping[str, Any], head: str, plain: int) -> str:
    if head not in row["least_us"]:
        return ""
    text = f"{row['least_us'][head] / plain:.2f}"
    return f"**{text}**" if head == row["chosen"] else text


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m reports.conv_gradients")
    parser.add_argument("words", nargs="*", help="layers whose name has one of these; default: all")
    parser.add_argument("--networks", action="store_true", help="whole steps, too")
    options = parser.parse_args(arguments)
    results: dict[str, Any] = json.loads(RESULT.read_text()) if RESULT.exists() else {"layers": {}}
    machine = f"{processor()}, {os.cpu_count()} cores"
    results |= {"onnxruntime": ort.__version__, "torch": torch.__version__, "machine": machine}
    for name, layer in LAYERS.items():
        if options.words and not any(word in name for word in options.words):
            continue
        print(name, file=sys.stderr, flush=True)
        both = {gradient: measured(layer, gradient) for gradient in ("kernel", "image")}
        results["layers"][name] = both
        RESULT.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n")
    for name in ("resnet50", "unet") if options.networks else ():
        print(name, file=sys.stderr, flush=True)
        results.setdefault("networks", {})[name] = step_row(name)
        RESULT.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n")
    PAGE.write_text(page(results))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

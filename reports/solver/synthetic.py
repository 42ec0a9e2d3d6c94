"""Training graphs of any size, made from formulas: chains, ResNets and GPTs.

Durations are a roofline: the larger of FLOPs over the reachable matrix rate and bytes read and
written over the reachable memory rate, plus a launch. The rates are the profiles that planner ships
(data-sheet peaks times the stated efficiencies, see `planner/cost/profiles`):

    chains, ResNets   fp32 on `v100`:       7.85 TFLOP/s,  675 GB/s, 6 us, 12 GB/s each way to the host
    GPTs              fp16 on `a100-40gb`:   156 TFLOP/s, 1166 GB/s, 5 us, 25 GB/s each way

Parameters, their gradients and the optimizer's state are persistent and left out, so budgets are
shares of the activations. A weight gradient is an operation that adds into a persistent buffer: it
makes no tensor, and may not run twice; the batch is made by the first operation, which may not run
twice either. Nothing is in place, as in the published instances.

    chain    layers of random sizes and costs; backward reads the gradient, the layer's input and,
             every second time, its output
    resnet   bottleneck blocks (He et al., CVPR 2016) on 224x224 images, batch 32, the four stages
             deepened in the proportion 3:4:6:3; convolution, batch normalization and relu apart
    gpt      a decoder of GPT-2 XL's width (1600, 25 heads; Radford et al., 2019), 8 x 1024 tokens,
             unfused, no dropout
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence

from planner.cost.hardware import Hardware, load_hardware
from planner.plan.problem import Problem
from reports.solver.build import Builder

FAMILIES = ("chain", "resnet", "gpt")
SIZES = (1_000, 3_000, 10_000, 30_000, 100_000)
MIB = 2**20
PAGE = 4096


def synthetic(family: str, operations: int) -> Problem:
    """Build a family's problem with about the given number of operations; the capacity is its peak.

    Raises:
        ValueError: no such family.
    """
    if family not in FAMILIES:
        raise ValueError(f"no family {family!r}; there are {', '.join(FAMILIES)}")
    make = {"chain": chain, "resnet": resnet, "gpt": gpt}[family]
    few, more = len(make(16).ops), len(make(32).ops)  # sizes are linear in the depth
    per_layer = (more - few) / 16
    return make(max(1, 16 + round((operations - few) / per_layer)))


def irregular(operations: int, *, seed: int = 0) -> Problem:
    """A random graph, forward and back, with skips; whole microseconds, and no hardware behind it.

    Durations are 1 to 9 us, sizes 1 to 20 KiB, without swaps: small enough for the published
    integer programs.
    """
    draw = random.Random(seed)
    builder = Builder()
    for i in range(operations):
        reads = {i - 1} if i else set()
        if i > operations // 2:
            reads.add(operations - 1 - i)
        elif i > 2 and draw.random() < 0.4:
            reads.add(draw.randrange(i - 1))
        builder.op(f"op{i}", draw.randint(1, 9), sorted(reads), (draw.randint(1, 20) * 1024,))
    return builder.problem(f"irregular{operations}-{seed}")


class Training:
    """A network written forward, layer by layer; `backward` adds the operations of its gradients.

    Every layer leaves a function that, when the tape is run backwards, turns the gradient of its
    output into that of its input; gradients that meet are added.
    """

    def __init__(self, hardware: Hardware, dtype: str) -> None:
        self.builder = Builder()
        self.hardware = hardware
        self.item_bytes = {"fp32": 4, "fp16": 2}[dtype]
        self.flops_per_us = hardware.matrix_flops_per_s[dtype] * hardware.compute_efficiency / 1e6
        self.bytes_per_us = hardware.memory_bytes_per_s * hardware.memory_efficiency / 1e6
        self.tape: list[Callable[[], None]] = []
        self.gradient: dict[int, int] = {}

    def size(self, tensor: int) -> int:
        """Return the bytes of a tensor."""
        return self.builder.sizes[tensor]

    def op(
        self,
        name: str,
        inputs: Sequence[int],
        output_bytes: Sequence[int] = (),
        *,
        flops: float = 0.0,
        recomputable: bool = True,
    ) -> tuple[int, ...]:
        """Add one operation, with the roofline's duration."""
        moved = sum(output_bytes) + sum(self.size(t) for t in inputs)
        time_us = max(flops / self.flops_per_us, moved / self.bytes_per_us)
        return self.builder.op(
            name,
            time_us + self.hardware.op_overhead_us,
            inputs,
            output_bytes,
            recomputable=recomputable,
        )

    def pass_back(self, tensor: int, gradient: int, name: str) -> None:
        """Pass back `gradient` as (a part of) the gradient of `tensor`."""
        other = self.gradient.get(tensor)
        if other is not None:
            (gradient,) = self.op(f"{name}.sum", (other, gradient), (self.size(tensor),))
        self.gradient[tensor] = gradient

    def differentiate(
        self,
        name: str,
        x: int,
        ys: Sequence[int],
        saved: Sequence[int] = (),
        *,
        flops: float = 0.0,
    ) -> None:
        """Have backward make the gradient of `x`, from those of `ys` and what is saved."""

        def back() -> None:
            reads = (*(self.gradient[y] for y in ys), *saved)
            (g,) = self.op(f"{name}.grad", reads, (self.size(x),), flops=flops)
            self.pass_back(x, g, name)

        self.tape.append(back)

    def elementwise(self, name: str, x: int, *, saves: str = "") -> int:
        """Add an operation whose output has its input's size; backward reads `"x"`, `"y"` or neither."""
        (y,) = self.op(name, (x,), (self.size(x),))
        self.differentiate(name, x, (y,), {"x": (x,), "y": (y,), "": ()}[saves])
        return y

    def weighted(self, name: str, x: int, output_bytes: int, flops: float) -> int:
        """Add a convolution or a product with a parameter; each of its two gradients costs as much."""
        (y,) = self.op(name, (x,), (output_bytes,), flops=flops)

        def back() -> None:
            g = self.gradient[y]
            self.op(f"{name}.wgrad", (g, x), flops=flops, recomputable=False)
            if self.builder.producers[x]:  # nothing reads the gradient of the data
                (gx,) = self.op(f"{name}.dgrad", (g,), (self.size(x),), flops=flops)
                self.pass_back(x, gx, name)

        self.tape.append(back)
        return y

    def normalize(self, name: str, x: int, groups: int) -> int:
        """Add a layer or batch normalization with `groups` means and variances (fp32)."""
        y, statistics = self.op(name, (x,), (self.size(x), 8 * groups))
        self.differentiate(name, x, (y,), (x, statistics))
        return y

    def product(self, name: str, a: int, b: int, output_bytes: int, flops: float) -> int:
        """Add a product of two activations."""
        (y,) = self.op(name, (a, b), (output_bytes,), flops=flops)

        def back() -> None:
            g = self.gradient[y]
            for label, of, other in (("a", a, b), ("b", b, a)):
                (part,) = self.op(f"{name}.{label}", (g, other), (self.size(of),), flops=flops)
                self.pass_back(of, part, name)

        self.tape.append(back)
        return y

    def add(self, name: str, a: int, b: int) -> int:
        """Add a residual: both inputs have its gradient."""
        (y,) = self.op(name, (a, b), (self.size(a),))

        def back() -> None:
            for x in (a, b):
                self.pass_back(x, self.gradient[y], name)

        self.tape.append(back)
        return y

    def split(self, name: str, x: int, parts: int) -> tuple[int, ...]:
        """Split into equal parts, each in its own buffer; backward joins their gradients."""
        ys = self.op(name, (x,), (self.size(x) // parts,) * parts)
        self.differentiate(name, x, ys)
        return ys

    def resize(self, name: str, x: int, output_bytes: int, *, saves_input: bool = False) -> int:
        """Add a pooling or similar operation; backward reads the gradient and perhaps the input."""
        (y,) = self.op(name, (x,), (output_bytes,))
        self.differentiate(name, x, (y,), (x,) if saves_input else ())
        return y

    def problem(self, name: str, logits: int) -> Problem:
        """Add the cross entropy of `logits` (it keeps the probabilities), then the backward pass."""
        loss, probabilities = self.op("loss", (logits,), (4, self.size(logits)))
        self.builder.to_end.add(loss)
        (self.gradient[logits],) = self.op("loss.grad", (probabilities,), (self.size(logits),))
        for back in reversed(self.tape):
            back()
        hardware = self.hardware
        return self.builder.problem(
            name,
            copy_bytes_per_s=(
                hardware.copy_to_host_bytes_per_s,
                hardware.copy_from_host_bytes_per_s,
            ),
        )


def chain(layers: int) -> Problem:
    """`layers` in a row, drawn with the number of layers as the seed."""
    draw = random.Random(layers)
    net = Training(load_hardware("v100"), "fp32")
    (x,) = net.op("data", (), (32 * MIB,), recomputable=False)
    for i in range(layers):
        output_bytes = draw.randint(8 * MIB // PAGE, 64 * MIB // PAGE) * PAGE
        flops = draw.choice((0.0, 0.5e9, 1e9, 3e9, 7e9, 12e9))
        x = _link(net, f"layer{i}", x, output_bytes, flops, saves_output=draw.random() < 0.5)
    return net.problem(f"chain{layers}", x)


def _link(
    net: Training, name: str, x: int, output_bytes: int, flops: float, *, saves_output: bool
) -> int:
    (y,) = net.op(name, (x,), (output_bytes,), flops=flops)
    net.differentiate(name, x, (y,), (x, y) if saves_output else (x,), flops=2 * flops)
    return y


def resnet(blocks: int, *, batch: int = 32, side: int = 224) -> Problem:
    """At least one block a stage; ResNet-50 has 16."""
    net = Training(load_hardware("v100"), "fp32")

    def area(channels: int, width: int) -> int:
        return batch * channels * width * width * net.item_bytes

    def conv(
        name: str, x: int, channels: tuple[int, int], width: int, kernel: int, *, relu: bool = True
    ) -> int:
        inward, outward = channels
        flops = 2.0 * batch * width**2 * kernel**2 * inward * outward
        y = net.weighted(f"{name}.conv", x, area(outward, width), flops)
        y = net.normalize(f"{name}.bn", y, outward)
        return net.elementwise(f"{name}.relu", y, saves="y") if relu else y

    (x,) = net.op("data", (), (area(3, side),), recomputable=False)
    x = conv("stem", x, (3, 64), side // 2, 7)
    width, inward = side // 4, 64
    x = net.resize("pool", x, area(64, width), saves_input=True)
    for stage, depth in enumerate(_depths(blocks)):
        middle, outward = 64 * 2**stage, 256 * 2**stage
        for block in range(depth):
            name, shortcut = f"stage{stage}.{block}", x
            before = width
            if stage and not block:
                width //= 2
            y = conv(f"{name}.a", x, (inward, middle), before, 1)
            y = conv(f"{name}.b", y, (middle, middle), width, 3)
            y = conv(f"{name}.c", y, (middle, outward), width, 1, relu=False)
            if not block:
                shortcut = conv(f"{name}.down", x, (inward, outward), width, 1, relu=False)
            x = net.elementwise(f"{name}.relu", net.add(f"{name}.add", y, shortcut), saves="y")
            inward = outward
    x = net.resize("mean", x, area(inward, 1))
    logits = net.weighted("fc", x, area(1000, 1), 2.0 * batch * inward * 1000)
    return net.problem(f"resnet{blocks}", logits)


def _depths(blocks: int) -> list[int]:
    """Blocks a stage, 3:4:6:3 as nearly as whole numbers go."""
    ends = [round(blocks * share / 16) for share in (0, 3, 7, 13, 16)]
    return [max(1, b - a) for a, b in itertools.pairwise(ends)]


def gpt(layers: int, *, batch: int = 8, tokens: int = 1024, width: int = 1600) -> Problem:
    """Heads of 64; vocabulary of 50,304; attention and MLP blocks normalized before."""
    net = Training(load_hardware("a100-40gb"), "fp16")
    rows, heads, vocabulary = batch * tokens, width // 64, 50_304
    hidden = rows * width * net.item_bytes
    scores = batch * heads * tokens**2 * net.item_bytes
    attention_flops = 2.0 * batch * tokens**2 * width

    def linear(name: str, x: int, inward: int, outward: int) -> int:
        size = rows * outward * net.item_bytes
        y = net.weighted(f"{name}.matmul", x, size, 2.0 * rows * inward * outward)
        return net.elementwise(f"{name}.bias", y)

    def layer(name: str, x: int) -> int:
        y = linear(f"{name}.qkv", net.normalize(f"{name}.ln1", x, rows), width, 3 * width)
        query, key, value = net.split(f"{name}.split", y, 3)
        y = net.product(f"{name}.scores", query, key, scores, attention_flops)
        y = net.elementwise(f"{name}.mask", net.elementwise(f"{name}.scale", y))
        y = net.elementwise(f"{name}.softmax", y, saves="y")
        y = net.product(f"{name}.context", y, value, hidden, attention_flops)
        y = linear(f"{name}.out", net.elementwise(f"{name}.merge", y), width, width)
        x = net.add(f"{name}.add1", x, y)
        y = linear(f"{name}.fc1", net.normalize(f"{name}.ln2", x, rows), width, 4 * width)
        y = linear(f"{name}.fc2", net.elementwise(f"{name}.gelu", y, saves="x"), 4 * width, width)
        return net.add(f"{name}.add2", x, y)

    (ids,) = net.op("data", (), (rows * 8,), recomputable=False)
    x = net.weighted("embed", ids, hidden, 0.0)
    for i in range(layers):
        x = layer(f"layer{i}", x)
    x = net.normalize("ln", x, rows)
    logits = net.weighted(
        "head", x, rows * vocabulary * net.item_bytes, 2.0 * rows * width * vocabulary
    )
    return net.problem(f"gpt{layers}", logits)

"""The rewritten file gives the original's bits where a script opens both: `onnxruntime.InferenceSession`
with no options. The judge of this file opens them so itself."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import helper as h

from planner import optimize, verify
from planner.errors import InfeasibleBudgetError
from planner.results import OptimizeResult
from planner.runtime.feeds.inputs import make_inputs
from planner.runtime.judge.alone import Alone, compared_bits, default_bits_note

ort.set_default_logger_severity(4)
CHANNELS, SIZE = 16, 12


class Images:
    """A network for images whose weights are inputs, as in a training graph: made node by node, with a
    value of each level read again at the end."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.nodes: list[onnx.NodeProto] = []
        self.inputs = [self._image("x", [2, CHANNELS, SIZE, SIZE])]
        self.kept: list[str] = []

    @staticmethod
    def _image(name: str, dims: list[int]) -> onnx.ValueInfoProto:
        return h.make_tensor_value_info(name, onnx.TensorProto.FLOAT, dims)

    def op(self, op_type: str, *inputs: str, **attributes: object) -> str:
        name = f"v{len(self.nodes)}"
        self.nodes.append(h.make_node(op_type, inputs, [name], name=f"n_{name}", **attributes))
        return name

    def conv(self, x: str) -> str:
        weight = f"w{len(self.nodes)}"
        self.inputs.append(self._image(weight, [CHANNELS, CHANNELS, 3, 3]))
        made = [x, weight]
        if self.rng.random() < 0.7:
            made.append(f"b{len(self.nodes)}")
            self.inputs.append(self._image(made[-1], [CHANNELS]))
        return self.op("Conv", *made, pads=[1, 1, 1, 1])

    def block(self, x: str) -> str:
        """One of the shapes that ONNX Runtime takes into a convolution, or nearly."""
        kind = self.rng.randrange(6)
        if kind == 0:  # a residual
            return self.op("Add", self.conv(self.op("Sigmoid", x)), x)
        if kind == 1:  # and its activation
            return self.op("Relu", self.op("Add", x, self.conv(self.op("Tanh", x))))
        if kind == 2:  # two convolutions, one of which takes the sum
            return self.op("Add", self.conv(x), self.conv(self.op("Tanh", x)))
        if kind == 3:  # an intermediate that is read again: no fusion
            made = self.conv(x)
            self.kept.append(made)
            return self.op("Add", made, x)
        if kind == 4:  # a pool that default options would lay out in blocks, between
            pooled = self.op("MaxPool", x, kernel_shape=[3, 3], pads=[1, 1, 1, 1], strides=[1, 1])
            return self.op("Add", self.conv(pooled), x)
        return self.op("LeakyRelu", self.conv(x), alpha=0.1)

    def model(self, blocks: int) -> onnx.ModelProto:
        x = self.op("Sin", "x")
        for _ in range(blocks):
            self.kept.append(x)
            x = self.block(x)
        for value in reversed(self.kept):
            x = self.op("Mul", x, self.op("Exp", self.op("Neg", value)))
        mean = self.op("ReduceMean", x, keepdims=0)
        outputs = [self._image(x, [2, CHANNELS, SIZE, SIZE]), self._image(mean, [])]
        graph = h.make_graph(self.nodes, "g", self.inputs, outputs)
        return h.make_model(graph, opset_imports=[h.make_opsetid("", 17)], ir_version=9)


def bare(path: Path) -> list[bytes]:
    """What a script gets that opens a file with no options."""
    feeds, _ = make_inputs(path)
    results = ort.InferenceSession(str(path)).run(None, dict(feeds))
    return [np.asarray(array).tobytes() for array in results]


def planned(path: Path, budget: str) -> OptimizeResult:
    return optimize(
        path,
        budget=budget,
        budget_of="live",
        output=path.with_name("planned.onnx"),
        swap="none",
        time_limit_s=1.0,
        strict=True,
        force=True,
    )


@pytest.mark.parametrize("seed", [0, 2])  # all kinds of block are in one of them
def test_networks_for_images_have_the_same_bits_by_default(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    path = tmp_path / "m.onnx"
    onnx.save(Images(rng).model(rng.randint(3, 6)), path)
    assert bare(path) == bare(path), "the original does not repeat itself"
    for budget in ("90%", "75%"):
        try:
            result = planned(path, budget)
        except InfeasibleBudgetError:
            continue
        assert result.verification is not None and result.verification.default_bits is not None
        assert result.verification.default_bits.differ == () == result.plan.default_differ
        assert bare(path) == bare(tmp_path / "planned.onnx")


def test_a_sum_is_planned_within_its_convolution(tmp_path: Path) -> None:
    """The networks above are worth something: their fusions are there, pools beside them plain."""
    seen: set[str] = set()
    for seed in range(8):
        rng = random.Random(seed)
        path = tmp_path / f"{seed}.onnx"
        onnx.save(Images(rng).model(rng.randint(3, 6)), path)
        result = optimize(path, budget="99%", output=tmp_path / "o.onnx", swap="none",
                          time_limit_s=1.0, verify=False, budget_of="live",
                          force=True)  # fmt: skip
        assert result.plan.default_differ is None, "nobody looked"
        nodes = onnx.load(tmp_path / "o.onnx").graph.node
        fused = [n for n in nodes if n.op_type == "FusedConv" and len(n.input) == 4]
        plain = [n for n in nodes if n.op_type == "MaxPool"]
        assert not any(n.domain == "com.microsoft.nchwc" for n in nodes)
        seen |= {"sum"} if fused else set()
        seen |= {"both"} if fused and plain else set()
        assert not result.plan.block_channels
        if seen == {"sum", "both"}:
            break
    assert seen == {"sum", "both"}


def test_other_bits_by_default_are_said_and_fail_where_that_is_asked(tmp_path: Path) -> None:
    """A file in which each convolution has a second reader: no sum is taken into it any more."""
    network = Images(random.Random(3))
    x = network.op("Sin", "x")
    for _ in range(4):
        x = network.op("Add", network.conv(network.op("Sigmoid", x)), x)
    network.kept = [x]
    original, other = tmp_path / "m.onnx", tmp_path / "other.onnx"
    proto = network.model(0)
    onnx.save(proto, original)
    convolutions = [n.output[0] for n in proto.graph.node if n.op_type == "Conv"]
    proto.graph.node.extend(
        h.make_node("Size", [value], [f"size_{value}"], name=f"size_of_{value}")
        for value in convolutions
    )
    onnx.save(proto, other)
    assert bare(original) != bare(other), "the fused kernel rounds as the others do"
    found = verify(original, other, fast=True)
    bits = found.default_bits
    assert bits is not None and bits.differ
    said = [n for n in found.notes if n.startswith("last bits differ under default options")]
    assert len(said) == 1 and bits.differ[0] in said[0] and "too" in said[0]
    strict = verify(original, other, fast=True, strict=True)
    assert not strict.passed and said[0] in strict.failures


def alone(*runs: dict[str, str]) -> Alone:
    return Alone(digests=runs, grown_bytes=(0,) * len(runs))


def test_what_differs_from_run_to_run_is_not_held_against_a_file() -> None:
    same, other = {"a": "1", "b": "2"}, {"a": "1", "b": "3"}
    bits = compared_bits(alone(same, same), alone(other, other), alone(same, same))
    assert bits is not None and (bits.differ, bits.unstable) == (("b",), ())
    assert default_bits_note(bits).endswith("identical with planner.open_session(file)")
    bits = compared_bits(alone(same, other), alone(other, same), alone(other, other))
    assert bits is not None and (bits.differ, bits.unstable) == ((), ("b",))
    assert default_bits_note(bits) == ""
    bits = compared_bits(alone(same, same), alone(other, other), Alone(failure="no arena"))
    assert bits is not None and bits.recommended_differ is None
    assert compared_bits(Alone(failure="none"), alone(same), alone(same)) is None

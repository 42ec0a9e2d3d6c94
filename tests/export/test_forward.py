"""Training graphs from forward ONNX models: autograd's gradients and PyTorch's steps, made without it."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import helper as h
from onnx import numpy_helper
from torch import Tensor
from torch.nn import functional as f

from planner import optimize
from planner.cli.main import main
from planner.errors import UsageError
from planner.export.errors import ExportError
from planner.export.from_onnx import gradients
from planner.export.from_onnx.forward import ForwardTraining, differentiate

pytest.importorskip("onnxsim")

Weights = Mapping[str, Tensor]


@dataclass(frozen=True, kw_only=True)
class Forward:
    """A forward model, and the same in PyTorch."""

    nodes: list[onnx.NodeProto]
    shapes: Mapping[str, tuple[int, ...]]
    inputs: Tensor
    logits: tuple[int, ...]
    compute: Callable[[Weights, Tensor], Tensor]
    constants: Mapping[str, np.ndarray]

    def weights(self) -> dict[str, Tensor]:
        generator = torch.Generator().manual_seed(0)
        drawn = {n: 0.4 * torch.randn(s, generator=generator) for n, s in self.shapes.items()}
        return {name: tensor.requires_grad_() for name, tensor in drawn.items()}

    def save(self, path: Path) -> Path:
        held = {n: t.detach().numpy() for n, t in self.weights().items()} | dict(self.constants)
        kind = h.np_dtype_to_tensor_dtype(self.inputs.numpy().dtype)
        graph = h.make_graph(
            self.nodes,
            "g",
            [h.make_tensor_value_info("x", kind, ["batch", *self.inputs.shape[1:]])],
            [h.make_tensor_value_info("logits", 1, ["batch", *self.logits[1:]])],
            [numpy_helper.from_array(array, name) for name, array in held.items()],
        )
        opset = [h.make_opsetid("", 20)]
        onnx.save(h.make_model(graph, opset_imports=opset, ir_version=9), path)
        return path


def pictures() -> Forward:
    def compute(w: Weights, x: Tensor) -> Tensor:
        found = f.max_pool2d(f.conv2d(x, w["conv.w"], w["conv.b"], stride=2).relu(), 2)
        return f.linear(found.flatten(1), w["out.w"], w["out.b"])

    window = {"kernel_shape": [2, 2], "strides": [2, 2]}
    return Forward(
        nodes=[
            h.make_node("Conv", ["x", "conv.w", "conv.b"], ["c"], strides=[2, 2]),
            h.make_node("Relu", ["c"], ["r"]),
            h.make_node("MaxPool", ["r"], ["p"], **window),
            h.make_node("Flatten", ["p"], ["flat"]),
            h.make_node("Gemm", ["flat", "out.w", "out.b"], ["logits"], transB=1),
        ],
        shapes={"conv.w": (8, 3, 3, 3), "conv.b": (8,), "out.w": (5, 72), "out.b": (5,)},
        inputs=torch.randn(4, 3, 14, 14, generator=torch.Generator().manual_seed(1)),
        logits=(4, 5),
        compute=compute,
        constants={},
    )


def words() -> Forward:
    """An embedding of ids of two axes, attention with a mask, a layer norm, GELU, a cube."""

    def compute(w: Weights, x: Tensor) -> Tensor:
        found = f.layer_norm(w["table"][x], (8,), w["norm.w"], w["norm.b"])
        scores = (found @ w["q"] + w["q.b"]) @ (found @ w["k"]).transpose(1, 2)
        share = (scores + torch.from_numpy(MASK)).softmax(-1)
        mixed = f.gelu(share @ (found @ w["v"])) + found**3
        return mixed @ w["out"]

    add = h.make_node
    nodes = [
        add("Gather", ["table", "x"], ["e"]),
        add("LayerNormalization", ["e", "norm.w", "norm.b"], ["n"]),
        add("MatMul", ["n", "q"], ["q0"]),
        add("Add", ["q0", "q.b"], ["q1"]),
        add("MatMul", ["n", "k"], ["k0"]),
        add("Transpose", ["k0"], ["k1"], perm=[0, 2, 1]),
        add("MatMul", ["q1", "k1"], ["s"]),
        add("Add", ["s", "mask"], ["masked"]),
        add("Softmax", ["masked"], ["share"]),
        add("MatMul", ["n", "v"], ["v0"]),
        add("MatMul", ["share", "v0"], ["a"]),
        add("Gelu", ["a"], ["g"]),
        add("Pow", ["n", "three"], ["cube"]),
        add("Add", ["g", "cube"], ["mixed"]),
        add("MatMul", ["mixed", "out"], ["logits"]),
    ]
    products = dict.fromkeys(("q", "k", "v"), (8, 8))
    return Forward(
        nodes=nodes,
        shapes={"table": (11, 8), "norm.w": (8,), "norm.b": (8,), "q.b": (8,), **products}
        | {"out": (8, 7)},
        inputs=torch.randint(0, 11, (3, 6), generator=torch.Generator().manual_seed(1)),
        logits=(3, 6, 7),
        compute=compute,
        constants={"mask": MASK, "three": np.array(3, np.float32)},
    )


def older() -> Forward:
    """As older exporters write: ids of int32, a weight in a constant node and laid out another way, a
    trained exponent, an operator's parts with its defaults, a softmax at the end."""

    def compute(w: Weights, x: Tensor) -> Tensor:
        found = w["table"][x.long()] @ w["w"].T
        return (f.elu(found).square() + 0.5) ** w["e"]

    add = h.make_node
    two = numpy_helper.from_array(np.array(2, np.int64))
    nodes = [
        add("Gather", ["table", "x"], ["e0"]),
        add("Transpose", ["w"], ["w0"], perm=[1, 0]),
        add("MatMul", ["e0", "w0"], ["a"]),
        add("Elu", ["a"], ["b"]),
        add("Constant", [], ["two"], value=two),
        add("Pow", ["b", "two"], ["c"]),
        add("Add", ["c", "half"], ["d"]),
        add("Pow", ["d", "e"], ["raw"]),
        add("Softmax", ["raw"], ["logits"], axis=-1),
    ]
    return Forward(
        nodes=nodes,
        shapes={"table": (11, 8), "w": (7, 8), "e": (7,)},
        inputs=torch.randint(0, 11, (3, 6), generator=torch.Generator().manual_seed(1)).int(),
        logits=(3, 6, 7),
        compute=compute,
        constants={"half": np.array(0.5, np.float32)},
    )


def unlike() -> Forward:
    """What onnxsim does not differentiate as it stands: windows over the edge, indices of several axes, a
    slice whose ends are computed, a mean without its axes."""

    def compute(w: Weights, x: Tensor) -> Tensor:
        found = f.max_pool2d(f.conv2d(x, w["conv.w"]), 3, 2, ceil_mode=True)
        found = f.avg_pool2d(found, 2, 2, 0, ceil_mode=True, count_include_pad=False)
        places = torch.from_numpy(PLACES)
        found = found.permute(2, 3, 0, 1)[places[:, 0], places[:, 1]].permute(1, 2, 0)
        return found[:, 2:].mean(-1) @ w["out.w"]

    add = h.make_node
    nodes = [
        add("Conv", ["x", "conv.w"], ["c"]),
        add("MaxPool", ["c"], ["p"], kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1),
        add("AveragePool", ["p"], ["a"], kernel_shape=[2, 2], strides=[2, 2], ceil_mode=1),
        add("Transpose", ["a"], ["t"], perm=[2, 3, 0, 1]),
        add("GatherND", ["t", "places"], ["g"]),
        add("Transpose", ["g"], ["b"], perm=[1, 2, 0]),
        add("Shape", ["b"], ["sizes"], start=1, end=2),
        add("Slice", ["b", "two", "sizes", "one"], ["s"]),
        add("ReduceMean", ["s", "last"], ["m"], keepdims=0),
        add("MatMul", ["m", "out.w"], ["logits"]),
    ]
    numbers = {"two": [2], "one": [1], "last": [-1]}
    return Forward(
        nodes=nodes,
        shapes={"conv.w": (6, 3, 1, 1), "out.w": (4, 5)},
        inputs=torch.randn(2, 3, 10, 12, generator=torch.Generator().manual_seed(1)),
        logits=(2, 5),
        compute=compute,
        constants={name: np.array(value) for name, value in numbers.items()} | {"places": PLACES},
    )


PLACES = np.array([[0, 1], [2, 2], [0, 1], [1, 0]])
MASK = np.triu(np.full((6, 6), -1e4, np.float32), 1)
MODELS = {"pictures": pictures, "words": words, "older": older, "unlike": unlike}


def losses(kind: str, found: Tensor) -> tuple[Tensor, Tensor]:
    """(a target, the loss)."""
    generator = torch.Generator().manual_seed(2)
    if kind == "mse":
        target = torch.randn(found.shape, generator=generator)
        return target, f.mse_loss(found, target)
    target = torch.randint(0, found.shape[-1], found.shape[:-1], generator=generator)
    target.view(-1)[1] = -100  # no class
    return target, f.cross_entropy(found.flatten(0, -2), target.flatten())


def run(graph: ForwardTraining, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    session = onnxruntime.InferenceSession(graph.model.SerializeToString())
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, map(np.asarray, session.run(names, dict(feeds))), strict=True))


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        *itertools.product(["pictures", "words"], ["mse", "cross_entropy"]),
        ("unlike", "mse"),
        ("older", "cross_entropy"),
    ],
)
def test_gradients_are_autograds(name: str, kind: str, tmp_path: Path) -> None:
    model, weights = MODELS[name](), MODELS[name]().weights()
    batch = {"batch": len(model.inputs)}
    train = tuple(weights) if name == "older" else ()  # exponents are no weights by themselves
    path = model.save(tmp_path / "m.onnx")
    graph = differentiate(path, loss=kind, dims=batch, train=train)
    target, loss = losses(kind, model.compute(weights, model.inputs))
    loss.backward()
    feeds = {"x": model.inputs.numpy(), "target": target.numpy(), **graph.parameters}
    found = run(graph, feeds)
    np.testing.assert_allclose(found["loss"], loss.detach(), rtol=1e-5)
    assert set(graph.parameters) == set(weights) and graph.inputs == ("x", "target")
    for key, parameter in weights.items():
        assert parameter.grad is not None
        wanted = parameter.grad.numpy()
        near = 2e-6 * float(np.abs(wanted).max()) + 1e-7
        np.testing.assert_allclose(found[f"{key}_grad"], wanted, atol=20 * near, err_msg=key)


def test_three_steps_are_pytorchs_and_the_plan_keeps_their_bits(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = words()
    path, output = model.save(tmp_path / "m.onnx"), tmp_path / "step.onnx"
    words_given = f"export {path} -o {output} --loss cross_entropy --optimizer adamw --dim batch=3"
    assert main([*words_given.split(), "--freeze", "norm.*", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["parameters"] == ["table", "q.b", "q", "k", "v", "out"]
    weights = model.weights()
    trained = [weights[name] for name in said["parameters"]]
    optimizer = torch.optim.AdamW(trained, lr=0.01)
    session = onnxruntime.InferenceSession(str(output))
    names = [item.name for item in session.get_outputs()]
    state = dict(np.load(tmp_path / "step.initial.npz"))
    for step in range(1, 4):
        target, loss = losses("cross_entropy", model.compute(weights, model.inputs))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        state |= {"lr": np.array(0.01, np.float32), "step": np.array(step, np.float32)}
        feeds = {"x": model.inputs.numpy(), "target": target.numpy(), **state}
        found = dict(zip(names, map(np.asarray, session.run(names, feeds)), strict=True))
        np.testing.assert_allclose(found["loss"], loss.detach(), rtol=1e-4)
        state |= {k.removesuffix("_new"): v for k, v in found.items() if k.endswith("_new")}
    for name in said["parameters"]:
        np.testing.assert_allclose(state[name], weights[name].detach(), atol=2e-4, err_msg=name)
    result = optimize(
        output,
        budget="90%",
        budget_of="live",
        output=tmp_path / "planned.onnx",
        time_limit_s=1.0,
    )
    bits = result.verification and result.verification.default_bits
    assert bits and bits.compared and not bits.differ


def test_a_wrong_gradient_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rule = gradients._RULES["Gather"]

    def half(ctx: object, node: onnx.NodeProto, gradient: str) -> list[str | None]:
        found = rule(ctx, node, gradient)
        return [ctx.b.mul(found[0], ctx.b.const(np.float32(0.5))), None]  # type: ignore[attr-defined]

    monkeypatch.setitem(gradients._RULES, "Gather", half)
    path = words().save(tmp_path / "m.onnx")
    with pytest.raises(ExportError, match=r"'table'.* do not match the loss"):
        differentiate(path, loss="mse", dims={"batch": 3})
    assert differentiate(path, loss="mse", dims={"batch": 3}, check=False).parameters


def _unknown(model: onnx.ModelProto) -> None:
    model.graph.node[1].op_type = "Sign"


def _in_training(model: onnx.ModelProto) -> None:
    """A batch normalization that updates its statistics."""
    names = ("scale", "shift", "mean", "spread")
    model.graph.node[1].CopyFrom(
        h.make_node(
            "BatchNormalization", ["c", *names], ["r", "m", "s"], name="norm", training_mode=1
        )
    )
    values = (np.ones(8, np.float32) for _ in names)
    model.graph.initializer.extend(map(numpy_helper.from_array, values, names))


def _kept_out(model: onnx.ModelProto) -> None:
    model.graph.node[0].op_type = "Sin"
    del model.graph.node[0].input[1:]
    del model.graph.node[0].attribute[:]
    del model.graph.node[2:]
    model.graph.output[0].name = "r"
    model.graph.output[0].CopyFrom(h.make_tensor_value_info("r", 1, ["batch", 3, 14, 14]))


def _named(before: str, now: str) -> Callable[[onnx.ModelProto], None]:
    def change(model: onnx.ModelProto) -> None:
        for node in model.graph.node:
            for names in (node.input, node.output):
                names[:] = [now if name == before else name for name in names]

    return change


def test_an_output_may_be_the_loss_by_its_name_and_weights_have_names_as_patterns(
    tmp_path: Path,
) -> None:
    nodes = [
        h.make_node("MatMul", ["x", "layers[0].w"], ["y"]),
        h.make_node("ReduceMean", ["y"], ["loss"], keepdims=0),
    ]
    weights = {"layers[0].w": (6, 3)}
    one = Forward(
        nodes=nodes,
        shapes=weights,
        inputs=torch.ones(2, 6),
        logits=(),
        compute=lambda w, x: (x @ w["layers[0].w"]).mean(),
        constants={},
    )
    model = onnx.load(one.save(tmp_path / "m.onnx"))
    model.graph.output[0].CopyFrom(h.make_tensor_value_info("loss", 1, []))
    onnx.save(model, tmp_path / "m.onnx")
    named = {"loss": "loss", "dims": {"batch": 2}, "train": ["layers[0].w"]}
    graph = differentiate(tmp_path / "m.onnx", **named)  # type: ignore[arg-type]
    found = run(graph, {"x": np.ones((2, 6), np.float32), **graph.parameters})
    np.testing.assert_allclose(found["layers[0].w_grad"], np.full((6, 3), 1 / 3), rtol=1e-6)


@pytest.mark.parametrize(
    ("change", "more", "error", "said"),
    [
        (None, {"loss": "hinge"}, UsageError, r"no loss 'hinge': choose mse or cross_entropy"),
        (None, {"optimizer": "adamw:lr=1"}, UsageError, r"sgd, momentum, adam, adamw by name"),
        (None, {"loss": "logits"}, ExportError, r"\[4, 5\]: the loss must be a scalar"),
        (None, {"loss": "mse:y"}, UsageError, r"no output 'y' \(logits\)"),
        (None, {"train": ("w*",)}, UsageError, r"matches 'w\*' \(there are conv.w"),
        (None, {"freeze": ("*",)}, ExportError, "no weights to train"),
        (_unknown, {}, ExportError, r"no gradient rule for op type 'Sign' \(node 'r'\)"),
        (_in_training, {}, ExportError, r"BatchNormalization has 3 outputs.*node 'norm'"),
        (_kept_out, {"train": ("out.b",)}, ExportError, "out.b.*--freeze"),
        (_named("r", "target"), {}, UsageError, "tensor called 'target'.*rename it"),
        (_named("r", "loss"), {}, UsageError, "give --loss loss if"),
        (
            _named("r", "out.w_grad"),
            {},
            UsageError,
            "'out.w_grad', which is the name of a gradient",
        ),
        (_named("r", "out.w_m"), {"optimizer": "adam"}, UsageError, "'out.w_m' is taken"),
    ],
)
def test_what_cannot_be_made_is_named(
    change: Callable[[onnx.ModelProto], None] | None,
    more: dict[str, object],
    error: type[Exception],
    said: str,
    tmp_path: Path,
) -> None:
    path = pictures().save(tmp_path / "m.onnx")
    if change is not None:
        model = onnx.load(path)
        change(model)
        onnx.save(model, path)
    with pytest.raises(error, match=said):
        differentiate(path, **{"loss": "mse", "dims": {"batch": 4}, **more})  # type: ignore[arg-type]


def test_options_of_the_other_kind_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = pictures().save(tmp_path / "m.onnx")
    for words_given, said in (
        (f"{path} --loss mse --dynamic-batch", "--dynamic-batch is for a step in PyTorch"),
        (f"{path}", "give its loss with --loss"),
        ("train.py:step --loss mse", "--loss is for a forward model"),
    ):
        assert main(["export", *words_given.split(), "-o", str(tmp_path / "s.onnx")]) == 2
        assert said in capsys.readouterr().err

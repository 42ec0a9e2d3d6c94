"""Build a training graph from a forward ONNX model, without PyTorch.

onnxsim's reverse-mode differentiation writes the gradients as ONNX nodes
(github.com/onnxsim/onnxsim, `onnxsim.graph_grad`). planner adds the loss before and the optimizer after,
under the names of graphs from PyTorch. The model computes as in inference: batch normalization keeps its
statistics, and a removed dropout is not restored.
"""

from __future__ import annotations

import fnmatch
import importlib.util
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnx
import onnx_ir as ir
from onnx import TensorProto, helper, numpy_helper, version_converter
from onnx_ir.passes.common import LiftConstantsToInitializersPass

from planner.errors import ModelError, UsageError
from planner.export.errors import ExportError
from planner.export.from_onnx.differences import check_gradients
from planner.export.from_onnx.gradients import differentiated, in_plain_operators
from planner.export.from_onnx.plain import opset_of
from planner.export.optim import OPTIMIZERS, StateTensor, Trained, Updated
from planner.export.write.emit import OPSET, Builder, value_info
from planner.export.write.files import data_path, stage
from planner.files.writing import FileName, check_writable
from planner.onnxio.load import load_model, value_types
from planner.onnxio.save import written_together

OptimizerName = Literal["sgd", "momentum", "adam", "adamw"]

LOSS, TARGET = "loss", "target"

_VIEWS = frozenset({"Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze"})
"""Operators that return their first operand in another layout."""

_WEIGHTS = {
    "BatchNormalization": (1, 2),
    "Conv": (1, 2),
    "ConvTranspose": (1, 2),
    "Gather": (0,),
    "GRU": (1, 2, 3),
    "Gemm": (1, 2),
    "InstanceNormalization": (1, 2),
    "LSTM": (1, 2, 3),
    "LayerNormalization": (1, 2),
    "MatMul": (0, 1),
    "PRelu": (1,),
    "RNN": (1, 2, 3),
}
"""The operands of each operator that are trained if they are float32 initializers."""


@dataclass(frozen=True, kw_only=True)
class ForwardTraining:
    """A training graph built from a forward model.

    Attributes:
        inputs: the forward model's inputs, then the target.
        parameters: initial values of the trained parameters, by name.
        state: the optimizer's inputs.
    """

    model: onnx.ModelProto
    inputs: tuple[str, ...]
    parameters: Mapping[str, np.ndarray]
    state: tuple[StateTensor, ...]

    def save(
        self, path: FileName, *, external_data: bool = False, force: bool = False
    ) -> tuple[Path, ...]:
        """Write the model, and the initial parameters and state to `NAME.initial.npz`.

        Raises:
            UsageError: a file exists, or cannot be written.
        """
        model = Path(path)
        beside = model.with_suffix(".initial.npz")
        for file in (model, beside, *([data_path(model)] if external_data else [])):
            check_writable(file, force=force)
        start = {item.name: np.full(item.shape, item.initial, item.dtype) for item in self.state}
        with written_together() as files:
            data = stage(self.model, model, files, external=external_data)
            with files.writing(beside) as temporary, temporary.open("wb") as file:
                np.savez(file, allow_pickle=False, **self.parameters, **start)
        return (model, *([data] if data else []), beside)


def differentiate(
    path: Path,
    *,
    loss: str,
    optimizer: OptimizerName | None = None,
    dims: Mapping[str, int] | None = None,
    train: Sequence[str] = (),
    freeze: Sequence[str] = (),
    check: bool = True,
) -> ForwardTraining:
    """Build the training graph of a forward model.

    Graph inputs: the model's, `target`, every trained parameter, then the optimizer's state. Outputs:
    `loss`; `<parameter>_grad`, or with an optimizer `<parameter>_new` and the new state.

    Args:
        path: the forward model; `dims` fixes its symbolic sizes.
        loss: "mse", "cross_entropy", or the name of a scalar output. "mse" is the mean squared difference
            from a target of the output's shape. "cross_entropy" takes int64 classes and averages over
            targets that are not negative: it ignores -100 as PyTorch does, and also -1. Classes lie along
            the last axis of an output with two or three axes, and along axis 1 of others; where a Softmax
            makes the output, the loss takes the Softmax's input. Both apply to the model's first output,
            or to a named one as in "mse:logits".
        train: patterns of the initializers that are trained; by default float32 weights, biases and
            scales of products, convolutions, normalizations and embeddings.
        freeze: patterns of initializers that are not trained.
        check: compare each gradient with finite differences of the loss
            (`planner.export.from_onnx.differences`).

    Raises:
        UsageError: onnxsim is not installed, a pattern fits nothing, an unknown loss or optimizer.
        ModelError: as for `load_model`.
        ExportError: an operator that onnxsim cannot differentiate, a loss that is no scalar, a parameter
            that the loss does not depend on.
    """
    _check_asked(optimizer)
    proto = _fixed(path, dims or {})
    _add_loss(proto, loss)
    parameters = _trained(proto, train, freeze)
    parts = _differentiated(proto, parameters)
    model = parts.finished([(f"{name}_grad", kind) for name, kind in parts.kinds.items()])
    if check:
        check_gradients(parts.finished([]), model, parameters)
    state: list[StateTensor] = []
    if optimizer is not None:
        state, updated = OPTIMIZERS[optimizer].append(parts.builder, parts.kinds, "_grad", "_new")
        model = parts.finished(updated, state)
    return ForwardTraining(
        model=model,
        inputs=tuple(value.name for value in parts.given),
        parameters=parameters,
        state=tuple(state),
    )


def _differentiated(proto: onnx.ModelProto, parameters: Mapping[str, np.ndarray]) -> _Parts:
    """Append the gradients of a loss to its model.

    Raises:
        UsageError: a tensor has the name of a gradient.
        ExportError: as for `differentiate`.
    """
    if clash := _names(proto.graph) & {f"{name}_grad" for name in parameters}:
        raise UsageError(
            f"the model has a tensor called {min(clash)!r}, which is the name of a gradient in "
            "the training graph: rename it"
        )
    proto = in_plain_operators(proto)
    nodes, constants, gradients = differentiated(proto, tuple(parameters))
    given = [value for value in proto.graph.input if value.name not in parameters]
    stored = {
        tensor.name: numpy_helper.to_array(tensor)
        for tensor in (*proto.graph.initializer, *constants)
        if tensor.name not in parameters
    }
    names = (*(value.name for value in given), *parameters, *stored)
    return _Parts(
        proto=proto,
        given=given,
        kinds={n: Trained(shape=a.shape, dtype=a.dtype) for n, a in parameters.items()},
        stored=stored,
        builder=_builder(names, nodes, gradients),
    )


@dataclass(frozen=True, kw_only=True)
class _Parts:
    """The parts of a training graph.

    Attributes:
        given: inputs of the forward model that are not trained.
        kinds: shapes and types of the trained parameters.
        stored: values of the other initializers.
        builder: the builder that holds the nodes.
    """

    proto: onnx.ModelProto
    given: Sequence[onnx.ValueInfoProto]
    kinds: Mapping[str, Trained]
    stored: Mapping[str, np.ndarray]
    builder: Builder

    def finished(self, results: Updated, state: Sequence[StateTensor] = ()) -> onnx.ModelProto:
        """Build the model whose outputs are the loss and `results`."""
        of_parameters = [value_info(n, kind.dtype, kind.shape) for n, kind in self.kinds.items()]
        of_state = [value_info(item.name, item.dtype, item.shape) for item in state]
        outputs = [value_info(LOSS, np.dtype(np.float32), ())]
        outputs += [value_info(name, kind.dtype, kind.shape) for name, kind in results]
        read = self.builder.read_for(output.name for output in outputs)
        kept = {name: array for name, array in self.stored.items() if name in read}
        inputs = [*self.given, *of_parameters, *of_state]
        name, opset = self.proto.graph.name, opset_of(self.proto)
        return self.builder.finish(name, inputs, outputs, kept, opset=opset)


def _check_asked(optimizer: str | None) -> None:
    """Raise UsageError where the optimizer is not known, or onnxsim is not installed."""
    if optimizer is not None and optimizer not in OPTIMIZERS:
        raise UsageError(
            f"the optimizer of a forward model must be {', '.join(OPTIMIZERS)} by name, not "
            f"{optimizer!r}: with PyTorch's settings, and lr as an input"
        )
    if importlib.util.find_spec("onnxsim") is None:
        raise UsageError(
            "gradients of an ONNX model are made by onnxsim; install it with "
            'pip install "onnx-planner[onnxsim]"'
        )


def _builder(
    names: Iterable[str], nodes: Sequence[onnx.NodeProto], gradients: Mapping[str, str]
) -> Builder:
    """Return a builder that holds the nodes, and names each gradient after its parameter.

    Args:
        names: names of values that no node makes.
    """
    builder = Builder()
    made = (name for node in nodes for name in node.output if name)
    for name in (*names, *made):
        builder.reserve(name)
    builder.nodes += nodes
    for name, gradient in gradients.items():
        builder.add("Identity", [gradient], f"{name}_grad")
    return builder


def _fixed(path: Path, dims: Mapping[str, int]) -> onnx.ModelProto:
    """Load the model with fixed sizes, in an operator set that can be differentiated."""
    loaded = load_model(path, dims=dims)
    types = value_types(loaded.model, loaded.dims)
    for value in (*loaded.model.graph.inputs, *loaded.model.graph.outputs):
        value.shape = ir.Shape(types[str(value.name)].shape)
    ir.external_data.load_to_model(loaded.model)
    LiftConstantsToInitializersPass(lift_all_constants=True)(loaded.model)
    proto = ir.to_proto(loaded.model)
    del proto.graph.value_info[:]
    if opset_of(proto) >= OPSET:
        return proto
    try:
        return version_converter.convert_version(proto, OPSET)
    except Exception as error:
        raise ModelError(
            f"{path} cannot be brought to operator set {OPSET}: {str(error).splitlines()[0]}"
        ) from None


def _add_loss(proto: onnx.ModelProto, loss: str) -> None:
    """Append the loss, as the output `loss`, and the input for its target."""
    graph = proto.graph
    kind, colon, name = loss.partition(":")
    outputs = {value.name: value for value in graph.output}
    _check_free(graph, loss if kind not in _LOSSES else None)
    if kind not in _LOSSES:
        if loss not in outputs:
            raise UsageError(
                f"no loss {loss!r}: choose {' or '.join(_LOSSES)}, each alone or with an output as in "
                f"mse:{graph.output[0].name}, or an output that is a scalar ({', '.join(outputs)})"
            )
        if outputs[loss].type.tensor_type.shape.dim:
            shape = [d.dim_value for d in outputs[loss].type.tensor_type.shape.dim]
            raise ExportError(f"output {loss!r} has the shape {shape}: the loss must be a scalar")
        if loss != LOSS:
            graph.node.append(helper.make_node("Identity", [loss], [LOSS]))
        return
    if colon and name not in outputs:
        raise UsageError(f"--loss {loss}: the model has no output {name!r} ({', '.join(outputs)})")
    output = outputs[name] if colon else graph.output[0]
    shape = tuple(dim.dim_value for dim in output.type.tensor_type.shape.dim)
    value = output.name
    if kind == "cross_entropy":
        value = _before_softmax(graph, value, len(shape))
    nodes, target = _LOSSES[kind](value, shape)
    graph.node.extend(nodes)
    graph.input.append(target)


def _check_free(graph: onnx.GraphProto, loss: str | None) -> None:
    """Raise UsageError where the model uses a name that the loss needs.

    Args:
        loss: the model's own output that is the loss, which may have the name `loss`; None to add a loss.
    """
    for name in _names(graph):
        is_added = name == TARGET or name.startswith(f"{LOSS}.")
        if (is_added and loss is None) or (name == LOSS and loss != LOSS):
            raise UsageError(
                f"the model has a tensor called {name!r}, which is also a name in the training "
                "graph: rename "
                f"it{', or give --loss loss if it is the output to train for' if name == LOSS else ''}"
            )


def _names(graph: onnx.GraphProto) -> set[str]:
    """Return the names of all tensors of a model."""
    made = {name for node in graph.node for name in node.output}
    return made | {value.name for value in (*graph.input, *graph.initializer)}


def _mean_square(output: str, shape: tuple[int, ...]) -> tuple[list[onnx.NodeProto], Any]:
    nodes = [
        helper.make_node("Sub", [output, TARGET], ["loss.difference"]),
        helper.make_node("Mul", ["loss.difference", "loss.difference"], ["loss.square"]),
        helper.make_node("ReduceMean", ["loss.square"], [LOSS], keepdims=0),
    ]
    return nodes, helper.make_tensor_value_info(TARGET, TensorProto.FLOAT, shape)


def _before_softmax(graph: onnx.GraphProto, output: str, rank: int) -> str:
    """Return the logits where a Softmax makes the output, else the output itself."""
    for node in graph.node:
        if node.output[0] == output and node.op_type == "Softmax":
            axis = next((a.i for a in node.attribute if a.name == "axis"), -1) % rank
            if axis == _classes(rank):
                return node.input[0]
            raise ExportError(
                f"{output!r} is a Softmax along axis {axis}, and the classes of cross_entropy are along "
                f"axis {_classes(rank)}: give an output that is the loss"
            )
    return output


def _classes(rank: int) -> int:
    """Return the axis of the classes."""
    return rank - 1 if rank <= 3 else 1


def _cross_entropy(output: str, shape: tuple[int, ...]) -> tuple[list[onnx.NodeProto], Any]:
    if len(shape) < 2:
        raise ExportError(f"output {output!r} has the shape {list(shape)}, which has no classes")
    axis = _classes(len(shape))
    rest = shape[:axis] + shape[axis + 1 :]
    node = helper.make_node
    nodes = [
        node("LogSoftmax", [output], ["loss.log"], axis=axis),
        _constant("loss.classes", np.array(shape[axis], np.int64)),
        _constant("loss.values", np.array([0, -1], np.float32)),
        _constant("loss.first", np.array(0, np.int64)),
        node("GreaterOrEqual", [TARGET, "loss.first"], ["loss.is_class"]),
        node("Cast", ["loss.is_class"], ["loss.counted"], to=TensorProto.FLOAT),
        node("ReduceSum", ["loss.counted"], ["loss.count"], keepdims=0),
        # -1 is the last class to OneHot, and a number behind the last one is none
        node("Where", ["loss.is_class", TARGET, "loss.classes"], ["loss.class"]),
        node("OneHot", ["loss.class", "loss.classes", "loss.values"], ["loss.chosen"], axis=axis),
        node("Mul", ["loss.log", "loss.chosen"], ["loss.each"]),
        node("ReduceSum", ["loss.each"], ["loss.sum"], keepdims=0),
        node("Div", ["loss.sum", "loss.count"], [LOSS]),
    ]
    return nodes, helper.make_tensor_value_info(TARGET, TensorProto.INT64, rest)


_LOSSES = {"mse": _mean_square, "cross_entropy": _cross_entropy}


def _constant(name: str, value: np.ndarray) -> onnx.NodeProto:
    return helper.make_node("Constant", [], [name], value=numpy_helper.from_array(value, name))


def _trained(
    proto: onnx.ModelProto, train: Sequence[str], freeze: Sequence[str]
) -> dict[str, np.ndarray]:
    """Return the initial values of the parameters to train, by name."""
    floats = {t.name: t for t in proto.graph.initializer if t.data_type == TensorProto.FLOAT}

    def like(patterns: Sequence[str]) -> set[str]:
        return {n for p in patterns for n in floats if n == p or fnmatch.fnmatchcase(n, p)}

    for pattern in (*train, *freeze):
        if not like([pattern]):
            raise UsageError(
                f"no float32 initializer matches {pattern!r} (there are "
                f"{', '.join(list(floats)[:4]) or 'none'}, ...)"
            )
    wanted = like(train) if train else _weights(proto, floats)
    wanted -= like(freeze)
    if not wanted:
        raise ExportError(
            "the model has no weights to train: no product, convolution, normalization or "
            "embedding reads a float32 initializer; name others with --train"
        )
    return {name: numpy_helper.to_array(floats[name]) for name in floats if name in wanted}


def _weights(proto: onnx.ModelProto, floats: Mapping[str, TensorProto]) -> set[str]:
    """Return the initializers that layers read as weights, scales or biases."""
    maker = {name: node for node in proto.graph.node for name in node.output}

    def stored(name: str) -> str:
        """Return the tensor that a weight is a view of, or the weight itself."""
        while name in maker and maker[name].op_type in _VIEWS:
            name = maker[name].input[0]
        return name

    found: set[str] = set()
    for node in proto.graph.node:
        places = _WEIGHTS.get(node.op_type, ())
        found |= {stored(node.input[at]) for at in places if at < len(node.input)} & floats.keys()
        if node.op_type == "Add":  # a bias if it is added to a product or a convolution
            for one, other in (node.input, reversed(node.input)):
                producer = maker.get(other)
                is_bias = one in floats and len(floats[one].dims) == 1  # a mask has more axes
                if is_bias and producer is not None and producer.op_type in _WEIGHTS:
                    found.add(one)
    return found

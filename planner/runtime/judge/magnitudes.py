"""Magnitudes of tensors' elements in one run, which tell whether a smaller type can hold them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy.typing as npt
import onnx_ir as ir
from google.protobuf.message import EncodeError

from planner.errors import ModelError
from planner.onnxio.names import FreeNames
from planner.runtime.inmemory import ModelInMemory
from planner.runtime.options import Opening


def largest_magnitudes(
    model: ir.Model,
    names: Sequence[str],
    feeds: Mapping[str, npt.NDArray[Any]],
    folder: Path,
    seed: int,
) -> dict[str, float]:
    """Return the largest absolute value in each tensor, on the CPU, without optimizations.

    Args:
        model: the model, which is not changed; nodes that the tensors do not depend on do not run.
        names: names of values that its nodes make.
        feeds: inputs by name.
        folder: the folder of its external data.
        seed: seed of random numbers.

    Raises:
        ModelError: the model cannot run on this machine.
    """
    clone = model.clone()
    graph, free = clone.graph, FreeNames(clone)
    made = {str(v.name): v for node in graph for v in node.outputs if v.name}
    asked: dict[str, str] = {}
    graph.outputs.clear()
    for name in names:
        size = ir.Node("", "Abs", [made[name]], name=free.fresh(f"{name}__abs"))
        most = ir.Node(
            "",
            "ReduceMax",
            [size.outputs[0]],
            attributes=[ir.AttrInt64("keepdims", 0)],
            name=free.fresh(f"{name}__largest"),
        )
        for node in (size, most):
            node.outputs[0].name = free.fresh(f"{node.name}_value")
            node.outputs[0].type = ir.TensorType(ir.DataType.FLOAT)
        most.outputs[0].shape = ir.Shape(())
        asked[str(most.outputs[0].name)] = name
        graph.extend([size, most])
        graph.outputs.append(most.outputs[0])
    _without_the_rest(clone)
    try:
        data = ir.to_proto(clone).SerializeToString()
    except (EncodeError, ValueError) as error:
        raise ModelError(f"the model is too large to be run from memory ({error})") from error
    wanted = {str(v.name) for v in graph.inputs}
    run = ModelInMemory(data=data, folder=folder)
    found = run.run(
        {name: array for name, array in feeds.items() if name in wanted},
        opening=Opening(level="disabled", threads=1),
        seed=seed,
    )
    return {asked[name]: float(value) for name, value in found.items()}


def _without_the_rest(model: ir.Model) -> None:
    """Remove the nodes that no output depends on."""
    needed: set[ir.Node] = set()
    stack = [value.producer() for value in model.graph.outputs]
    while stack:
        node = stack.pop()
        if node is None or node in needed:
            continue
        needed.add(node)
        stack += [value.producer() for value in node.inputs if value is not None]
    unused = [node for node in model.graph if node not in needed]
    for node in unused:
        for i in range(len(node.inputs)):
            node.replace_input_with(i, None)
    model.graph.remove(unused)

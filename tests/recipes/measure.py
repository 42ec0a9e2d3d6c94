"""One recipe: exported with the guard, compared with PyTorch's step once more, planned, verified."""

from __future__ import annotations

import contextlib
import copy
import math
import re
import tempfile
import time
import warnings
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch
from onnx import TensorProto
from torch import Tensor, nn

from planner.errors import PlannerError
from planner.export.inputs import InputSpec
from planner.export.trace.step import unwrapped
from planner.export.training import ExportedGraph, export_training_graph, step_of
from planner.export.write.dtypes import array_of
from planner.runtime.arrays import run_arrays
from reports.planned import planned
from tests.recipes.kit import RECIPES, Make, Recipe

GROUPS = (
    "losses", "objectives", "loops", "regularizers", "robustness", "tuning", "forms", "networks",
    "mechanisms", "structures", "probabilities", "generators", "policies", "optimizers",
)  # fmt: skip
_DRAWS = re.compile("Random|Bernoulli|Dropout")
_HALF = {TensorProto.FLOAT16, TensorProto.BFLOAT16}
Row = dict[str, Any]


def recipes() -> Mapping[str, Make]:
    """All recipes, in the order of their groups."""
    for group in GROUPS:
        import_module(f"tests.recipes.{group}")
    return RECIPES


def row_named(name: str, time_limit_s: float) -> Row:
    """Measure a recipe, its parameters and inputs drawn from one seed."""
    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    return row_of(name, recipes()[name](), time_limit_s)


def row_of(name: str, recipe: Recipe, time_limit_s: float) -> Row:
    """Measure a recipe; what fails is in the row, by its own message."""
    row: Row = {"recipe": name}
    start = time.monotonic()
    try:
        graph = export_training_graph(
            recipe.module, recipe.inputs, recipe.loss, targets=recipe.targets, **recipe.options
        )
    except PlannerError as error:
        said = re.sub(r"\S*/(?=tests/|torch/)", "", str(error))
        return {**row, "export": f"{type(error).__name__}: {said}"}
    except Exception as error:  # a refusal that is no sentence is a fault, and a row
        return {**row, "export": f"unexpected {type(error).__name__}: {str(error)[:300]}"}
    row |= {
        "export": "",
        "unchecked": graph.unchecked,
        "assumed": list(graph.assumed),
        "nodes": len(graph.model.graph.node),
        "is_half": _is_half(graph),
        "export_s": time.monotonic() - start,
    }
    feeds = _feeds(graph, recipe)
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "recipe.onnx"
        graph.save(model)
        row |= planned(
            model, feeds, time_limit_s, "live", calibrate=False, dims=_open(graph, feeds)
        )
    return {**row, "apart": _apart(graph, recipe, feeds)}


def _feeds(graph: ExportedGraph, recipe: Recipe) -> dict[str, np.ndarray]:
    """The first step's: the examples, the module's tensors, first state, and draws."""
    autocast = recipe.options.get("autocast")
    _, given = step_of(recipe.module, recipe.inputs, recipe.loss, recipe.targets, autocast)
    held = {**_tensors(recipe.module), **given}
    arrays = {name: np.array(array_of(tensor)) for name, tensor in held.items()}
    arrays |= graph.initial_state()
    wanted = [info.name for info in graph.model.graph.input]
    drawn: Mapping[str, InputSpec] = graph.recipes
    return {n: arrays[n] if n in arrays else drawn[n].draw(n) for n in wanted}


def _open(graph: ExportedGraph, feeds: Mapping[str, np.ndarray]) -> dict[str, int]:
    """Sizes of the dims that stay symbolic."""
    return {
        dim.dim_param: size
        for info in graph.model.graph.input
        for dim, size in zip(info.type.tensor_type.shape.dim, feeds[info.name].shape, strict=True)
        if dim.dim_param
    }


def _is_half(graph: ExportedGraph) -> bool:
    """Whether anything in the graph is cast to, or held in, 16 bits."""
    casts = (
        attribute.i
        for node in graph.model.graph.node
        if node.op_type == "Cast"
        for attribute in node.attribute
    )
    held = (info.type.tensor_type.elem_type for info in graph.model.graph.input)
    return not _HALF.isdisjoint((*casts, *held))


def _tensors(module: nn.Module) -> dict[str, Tensor]:
    module = unwrapped(module)
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


def _apart(graph: ExportedGraph, recipe: Recipe, feeds: Mapping[str, np.ndarray]) -> float | None:
    """By how much the first step on stock ONNX Runtime is off from the recipe run by PyTorch, update
    included: the norm of the difference of all results, by their change's norm. None where random
    numbers differ, or the update is a name. Knows nothing of the exporter."""
    names = [output.name for output in graph.model.graph.output]
    update = recipe.options.get("optimizer")
    is_random = any(_DRAWS.search(node.op_type) for node in graph.model.graph.node)
    if is_random or graph.draws or isinstance(update, str):
        return None
    session = onnxruntime.InferenceSession(
        graph.model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    ours = dict(zip(names, run_arrays(session, feeds, names), strict=True))
    theirs = _eager(recipe, update)
    off = whole = 0.0
    for name, value in theirs.items():
        if name in ours:
            old = feeds.get(name.removesuffix("_new"), 0.0) if name.endswith("_new") else 0.0
            off += float(np.square(ours[name].astype(float) - value).sum())
            whole += float(np.square(value - old).sum())
    return math.sqrt(off / whole) if whole else math.sqrt(off)


def _eager(recipe: Recipe, update: Any) -> dict[str, np.ndarray]:
    """Loss, gradients, and the module's tensors behind the step, in float64. Changes the recipe."""
    module, half = recipe.module, recipe.options.get("autocast")
    context = torch.autocast("cpu", half) if half else contextlib.nullcontext()
    inputs, targets = copy.deepcopy((_leaves(recipe.inputs), _leaves(recipe.targets)))
    module.train()
    with context:
        given = module(**inputs) if isinstance(inputs, Mapping) else module(*inputs)
        wanted = targets.values() if isinstance(targets, Mapping) else targets
        found = recipe.loss(given, *wanted) if recipe.loss else getattr(given, "loss", given)
        loss = found[0] if isinstance(found, tuple) else found
    loss.backward()
    found = {"loss": loss}
    for name, parameter in unwrapped(module).named_parameters():
        if parameter.grad is not None:
            found[f"{name}_grad"] = parameter.grad.to_dense().clone()
    if update is not None:
        (update.step if isinstance(update, torch.optim.Optimizer) else update)()
    found |= {f"{name}_new": tensor for name, tensor in _tensors(module).items()}
    return {name: array_of(tensor).astype(float) for name, tensor in found.items()}


def _leaves(given: Any) -> Any:
    return (given,) if isinstance(given, Tensor) else given

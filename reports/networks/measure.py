"""One network: exported, its loss and gradients beside autograd's, planned, verified."""

from __future__ import annotations

import contextlib
import copy
import math
import re
import tempfile
import time
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import torch
from torch import Tensor, nn

from models.networks.catalogue import Step, catalogue
from planner.errors import PlannerError
from planner.export.training import ExportedGraph, export_training_graph
from reports.planned import planned
from reports.shared import Row

NEAR = 1e-3
"""Relative L2 norm of the difference of all gradients, up to which no explanation is needed."""

_STILL = (1e-7, 1e-7, 1e-6, 1e-6, 1e-6, 1e-6)
"""Relative sizes of changes of the inputs that say how much a network amplifies rounding: each is drawn
anew, since one ReLU that flips in an early layer may be most of it, and flips for some alone."""


def row_named(name: str, time_limit_s: float) -> Row:
    """Measure a network of the catalogue by `row_of`, with parameters and inputs drawn from one seed."""
    warnings.simplefilter("ignore")
    networks, _ = catalogue()
    torch.manual_seed(0)
    return row_of(name, networks[name](), time_limit_s)


def row_of(name: str, step: Step, time_limit_s: float) -> Row:
    """Measure a network; a failure's own message is in the row."""
    row: Row = {"network": name}
    _without_dropout(step.module.train())
    start = time.monotonic()
    try:
        graph = export_training_graph(
            step.module,
            step.inputs,
            step.loss,
            targets=step.targets,
            specialize=True,
            name="network",
        )
    except PlannerError as error:
        return {**row, "export": re.sub(r"/\S*site-packages/", "", str(error))}
    row |= {
        "export": "",
        "nodes": len(graph.model.graph.node),
        "assumed": list(graph.assumed),
        "parameters": sum(p.numel() for p in step.module.parameters()),
        "export_s": time.monotonic() - start,
    }
    try:
        row |= _against_autograd(graph, step)
    except Exception as error:  # of ONNX Runtime, on a model that it does not load
        return {**row, "numbers": f"{type(error).__name__}: {str(error).splitlines()[0]}"}
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "network.onnx"
        graph.save(model)
        return {**row, **planned(model, _feeds(graph, step), time_limit_s)}


def _without_dropout(module: nn.Module) -> None:
    """Set every kind of dropout to 0, since random numbers would differ."""
    for part in module.modules():
        for name, value in list(vars(part).items()):
            if isinstance(value, float) and ("drop" in name or (name == "p" and _drops(part))):
                setattr(part, name, 0.0)


def _drops(part: nn.Module) -> bool:
    return any(word in type(part).__name__ for word in ("Drop", "StochasticDepth"))


def _loss(step: Step, module: nn.Module, inputs: Any, targets: tuple[Tensor, ...]) -> Tensor:
    found = module(**inputs) if isinstance(inputs, dict) else module(*inputs)
    return step.loss(found, *targets) if step.loss else found.loss


def _gradients(
    step: Step, kind: torch.dtype, change: float = 0.0, seed: int = 0
) -> tuple[float, dict[str, np.ndarray]]:
    """Compute PyTorch's loss and gradients in one type, on inputs with a little noise."""
    torch.manual_seed(seed)

    def moved(value: Any) -> Any:
        if not isinstance(value, Tensor) or not value.is_floating_point():
            return value
        return (value * (1 + change * torch.randn_like(value))).to(kind)

    module = copy.deepcopy(step.module).to(kind)
    inputs = step.inputs
    given = (
        {k: moved(v) for k, v in inputs.items()}
        if isinstance(inputs, dict)
        else tuple(map(moved, inputs))
    )
    targets = tuple(t.to(kind) if t.is_floating_point() else t for t in step.targets)
    loss = _loss(step, module, given, targets)
    loss.backward()
    found = {k: p.grad.double().numpy() for k, p in module.named_parameters() if p.grad is not None}
    return float(loss), found


def _apart(one: Mapping[str, np.ndarray], other: Mapping[str, np.ndarray]) -> float:
    """Return the norm of the difference of all gradients, relative to the norm of the second."""
    off = sum(float(np.square(one[k] - other[k]).sum()) for k in other)
    whole = sum(float(np.square(other[k]).sum()) for k in other)
    return math.sqrt(off / whole) if whole else math.sqrt(off)


def _feeds(graph: ExportedGraph, step: Step) -> dict[str, np.ndarray]:
    given = step.inputs.values() if isinstance(step.inputs, dict) else step.inputs
    tensors = [value for value in given if isinstance(value, Tensor)] + list(step.targets)
    feeds = {name: t.numpy() for name, t in zip(graph.inputs, tensors, strict=True)}
    held = {**dict(step.module.named_parameters()), **dict(step.module.named_buffers())}
    for info in graph.model.graph.input:
        if info.name not in feeds:
            feeds[info.name] = held[info.name].detach().numpy()
    return feeds


def _against_autograd(graph: ExportedGraph, step: Step) -> Row:
    session = ort.InferenceSession(graph.model.SerializeToString())
    names = [output.name for output in session.get_outputs()]
    feeds = {k: np.array(v) for k, v in _feeds(graph, step).items()}
    arrays = [np.asarray(result) for result in session.run(names, feeds)]
    found = dict(zip(names, arrays, strict=True))
    loss, gradients = _gradients(step, torch.float32)
    ours = {k: found[f"{k}_grad"].astype(np.float64) for k in gradients if f"{k}_grad" in found}
    row: Row = {
        "numbers": "",
        "loss_apart": abs(float(found["loss"]) - loss) / max(1e-9, abs(loss)),
        "gradients_apart": _apart(ours, {k: gradients[k] for k in ours}),
    }
    if row["gradients_apart"] > NEAR:
        # PyTorch beside itself: what rounding alone does to this network
        others = [
            _gradients(step, torch.float32, change, seed)[1] for seed, change in enumerate(_STILL)
        ]
        with contextlib.suppress(RuntimeError):  # a type that is fixed in the network
            others.append(_gradients(step, torch.float64)[1])
        row["torch_apart"] = max(_apart(other, gradients) for other in others)
    return row

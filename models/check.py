"""Check an exported training graph against PyTorch: `python -m models.check NET [size options]`.

Both run the same step on the same tensors. The loss, every gradient, every new buffer and every
updated parameter are compared. The differences are relative L2 norms: a single element near
zero says little, and a ReLU fed with almost nothing may flip in either implementation.
"""

from __future__ import annotations

import argparse
import sys
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnxruntime
import torch
from onnx import ModelProto
from torch import Tensor, nn

from models.build import add_size_options, build, sized_step
from models.recipes import RECIPES, Step
from planner.errors import PlannerError, UsageError
from planner.export.inputs import InputSpec
from planner.export.optim import (
    GRADIENT_SUFFIX,
    OPTIMIZERS,
    SGD,
    UPDATED_SUFFIX,
    Adam,
    AdamW,
)
from planner.export.write.lower import LOSS


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The differences between ONNX Runtime and PyTorch."""

    nodes: int
    differences: Mapping[str, float]
    """Norm of the difference over norm of PyTorch's value, by graph output."""

    @property
    def worst(self) -> tuple[str, float]:
        """The output that differs most."""
        return max(self.differences.items(), key=lambda item: item[1])


def compare(step: Step, *, optimizer: str | None = None, dynamic_batch: bool = False) -> Comparison:
    """Export `step`, run it on both sides, and compare every output of the graph."""
    graph, specs = build(step, "check", optimizer=optimizer, dynamic_batch=dynamic_batch)
    if any(node.op_type == "Dropout" for node in graph.model.graph.node):
        raise UsageError("dropout draws at random: two runs cannot be compared")
    verify_structure(graph.model, static=not dynamic_batch)
    feeds = {name: draw_rough(name, spec) for name, spec in specs.items()}
    actual = run(graph.model, feeds)
    expected = reference(step, feeds, optimizer)
    missing = expected.keys() ^ actual.keys()
    if missing:
        raise AssertionError(f"outputs on one side only: {sorted(missing)}")
    return Comparison(
        nodes=len(graph.model.graph.node),
        differences={name: distance(actual[name], expected[name]) for name in expected},
    )


def distance(actual: np.ndarray, expected: np.ndarray) -> float:
    """Return the relative L2 norm of the difference; infinity if shapes or types differ."""
    if actual.shape != expected.shape or actual.dtype != expected.dtype:
        return float("inf")
    difference = np.linalg.norm(actual.astype(np.float64) - expected.astype(np.float64))
    return float(difference / (np.linalg.norm(expected.astype(np.float64)) + 1e-12))


def draw_rough(name: str, spec: InputSpec) -> np.ndarray:
    """Draw by the recipe, with noise added to constants (scales, shifts): ones and zeros hide errors."""
    array = spec.draw(name)
    if spec.kind != "const" or array.dtype != np.float32 or array.ndim == 0:
        return array
    generator = np.random.Generator(np.random.PCG64(zlib.crc32(name.encode()) ^ 1))
    noise = generator.standard_normal(array.shape, dtype=np.float32) * np.float32(0.1)
    # Second moments and variances are never negative.
    return np.abs(array + noise) if name.endswith(("_v", "running_var")) else array + noise


def verify_structure(model: ModelProto, *, static: bool = True) -> None:
    """Check that a model is valid, with standard operators only, and known types and static shapes."""
    onnx.checker.check_model(model, full_check=True)
    foreign = {node.op_type for node in model.graph.node if node.domain}
    if foreign:
        raise AssertionError(f"operators outside the standard: {sorted(foreign)}")
    inferred = onnx.shape_inference.infer_shapes(model, strict_mode=True, data_prop=True).graph
    known = {
        info.name
        for info in [*inferred.value_info, *inferred.output]
        if info.type.tensor_type.HasField("shape")
        and all(dim.HasField("dim_value") for dim in info.type.tensor_type.shape.dim)
    }
    unknown = [
        result for node in inferred.node for result in node.output if result and result not in known
    ]
    if static and unknown:
        raise AssertionError(f"values without a static shape: {unknown}")


def run(
    model: ModelProto, feeds: Mapping[str, np.ndarray], *, threads: int = 1
) -> dict[str, np.ndarray]:
    """Return every output of one run on ONNX Runtime's CPU provider."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    names = [output.name for output in session.get_outputs()]
    results = session.run(names, dict(feeds))
    return {name: np.asarray(result) for name, result in zip(names, results, strict=True)}


def reference(
    step: Step, feeds: Mapping[str, np.ndarray], optimizer: str | None = None
) -> dict[str, np.ndarray]:
    """Compute the same outputs with PyTorch's autograd and optimizers."""
    module = materialize(step.module, feeds)
    first, *others = (torch.from_numpy(feeds[name]) for name in step.inputs)
    loss = step.loss(module(first), *others)
    loss.backward()
    trained = {name: p for name, p in module.named_parameters() if p.grad is not None}
    results = {LOSS: loss.detach().numpy()}
    if optimizer is None:
        results |= {name + GRADIENT_SUFFIX: _grad(p).numpy() for name, p in trained.items()}
    else:
        results |= _OPTIMIZE[type(OPTIMIZERS[optimizer])](optimizer, trained, feeds)
    for name, buffer in module.named_buffers():
        if name not in feeds or not np.array_equal(buffer.numpy(), feeds[name]):
            results[name + UPDATED_SUFFIX] = buffer.numpy()
    return results


def materialize(module: nn.Module, feeds: Mapping[str, np.ndarray]) -> nn.Module:
    """Replace the meta tensors of `module` by copies of the fed tensors; keep ties."""
    replaced: dict[int, Tensor] = {}
    for name, parameter in module.named_parameters():
        array = feeds.get(name)
        value = torch.zeros(parameter.shape) if array is None else torch.from_numpy(array.copy())
        replaced[id(parameter)] = nn.Parameter(value, parameter.requires_grad)
    for name, buffer in module.named_buffers():
        replaced[id(buffer)] = torch.from_numpy(feeds[name].copy())
    for owner in module.modules():
        tables: list[dict[str, Any]] = [owner._parameters, owner._buffers]
        for table in tables:
            table.update((key, replaced[id(old)]) for key, old in table.items() if old is not None)
    return module.train()


def _grad(parameter: nn.Parameter) -> Tensor:
    assert parameter.grad is not None
    return parameter.grad


def _sgd(
    name: str, trained: Mapping[str, nn.Parameter], feeds: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    settings = OPTIMIZERS[name]
    assert isinstance(settings, SGD)
    optimizer = torch.optim.SGD(
        trained.values(), lr=float(feeds["lr"]), momentum=settings.momentum, foreach=False
    )
    state = {} if not settings.momentum else {"momentum_buffer": "momentum"}
    return _update(optimizer, trained, feeds, state)


def _adam(
    name: str, trained: Mapping[str, nn.Parameter], feeds: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    settings = OPTIMIZERS[name]
    assert isinstance(settings, Adam)
    kind = torch.optim.AdamW if settings.decoupled else torch.optim.Adam
    optimizer = kind(
        trained.values(),
        lr=float(feeds["lr"]),
        betas=(settings.beta1, settings.beta2),
        eps=settings.epsilon,
        weight_decay=settings.weight_decay,
        foreach=False,
    )
    for parameter in trained.values():
        optimizer.state[parameter]["step"] = torch.tensor(float(feeds["step"]) - 1)
    return _update(optimizer, trained, feeds, {"exp_avg": "m", "exp_avg_sq": "v"})


def _update(
    optimizer: torch.optim.Optimizer,
    trained: Mapping[str, nn.Parameter],
    feeds: Mapping[str, np.ndarray],
    state: Mapping[str, str],
) -> dict[str, np.ndarray]:
    """Run one optimizer step from the fed state. `state` maps PyTorch's names to the graph's."""
    for name, parameter in trained.items():
        for theirs, ours in state.items():
            optimizer.state[parameter][theirs] = torch.from_numpy(feeds[f"{name}_{ours}"].copy())
    optimizer.step()
    results: dict[str, np.ndarray] = {}
    for name, parameter in trained.items():
        results[name + UPDATED_SUFFIX] = parameter.detach().numpy()
        for theirs, ours in state.items():
            value = optimizer.state[parameter][theirs]
            results[f"{name}_{ours}{UPDATED_SUFFIX}"] = value.numpy()
    return results


_OPTIMIZE: dict[type, Callable[..., dict[str, np.ndarray]]] = {
    SGD: _sgd,
    Adam: _adam,
    AdamW: _adam,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line: print the largest differences, and fail above a tolerance."""
    parser = argparse.ArgumentParser(
        prog="python -m models.check",
        description="Compare an exported training graph with PyTorch, output by output.",
    )
    parser.add_argument("net", choices=RECIPES, metavar="NET")
    add_size_options(parser)
    parser.add_argument("--optimizer", choices=OPTIMIZERS)
    parser.add_argument("--dynamic-batch", action="store_true")
    parser.add_argument("--tolerance", type=float, default=1e-4, help="default: %(default)s")
    options = parser.parse_args(arguments)
    try:
        comparison = compare(
            sized_step(options), optimizer=options.optimizer, dynamic_batch=options.dynamic_batch
        )
    except PlannerError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    ranked = sorted(comparison.differences.items(), key=lambda item: -item[1])
    print(f"{options.net}: {comparison.nodes} nodes, {len(ranked)} outputs; largest differences:")
    for name, difference in ranked[:5]:
        print(f"  {difference:.1e}  {name}")
    return 0 if comparison.worst[1] <= options.tolerance else 1


if __name__ == "__main__":
    sys.exit(main())

"""Build a training graph by name: `python -m models.build gpt2 --batch 4 -o gpt2.onnx`."""

from __future__ import annotations

import argparse
import resource
import sys
import time
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

import torch

from models.recipes import RECIPES, Size, Step
from planner.errors import PlannerError
from planner.export.arguments import Arguments
from planner.export.dims import open_batch
from planner.export.initial import initial_specs
from planner.export.inputs import InputSpec, write_specs
from planner.export.optim import OPTIMIZERS
from planner.export.trace.joint import trace
from planner.export.trace.step import TrainingStep
from planner.export.write.files import save
from planner.export.write.lower import LoweredStep, lower


def build(
    step: Step,
    name: str,
    *,
    optimizer: str | None = None,
    dynamic_batch: bool = False,
    store_parameters: bool = False,
) -> tuple[LoweredStep, dict[str, InputSpec]]:
    """Build the training graph of a step, and a recipe for each of its inputs."""
    inputs = {
        key: torch.empty(spec.shape, dtype=getattr(torch, spec.dtype), device="meta")
        for key, spec in step.inputs.items()
    }
    first, *others = inputs.values()
    whole = TrainingStep(step.module, Arguments(first), Arguments(others), step.loss)
    specs = initial_specs(step.module)
    graph = lower(
        trace(whole, inputs, dims=open_batch(inputs) if dynamic_batch else None),
        name,
        optimizer=OPTIMIZERS[optimizer] if optimizer else None,
        initializers=(
            {key: spec.draw(key) for key, spec in specs.items()} if store_parameters else None
        ),
    )
    graph.model.producer_name = "planner.models"  # no version: samples are built again to the byte
    specs = {**step.inputs, **specs}
    for item in graph.state:
        specs[item.name] = InputSpec(
            shape=item.shape, dtype="float32", kind="const", value=item.initial
        )
    return graph, {item.name: specs[item.name] for item in graph.model.graph.input}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    options = _parser().parse_args(arguments)
    started = time.perf_counter()
    try:
        graph, specs = build(
            sized_step(options),
            options.net,
            optimizer=options.optimizer,
            dynamic_batch=options.dynamic_batch,
            store_parameters=options.params == "initializers",
        )
    except PlannerError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    save(graph.model, options.output, external=options.external_data)
    if options.sidecar:
        write_specs(options.output.with_suffix(".inputs.json"), specs)
    nodes, seconds = len(graph.model.graph.node), time.perf_counter() - started
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(
        f"{options.output}: {nodes} nodes, {len(graph.parameters)} parameters; "
        f"{seconds:.1f} s, {memory:.0f} MiB of memory"
    )
    return 0


def add_size_options(parser: argparse.ArgumentParser) -> None:
    """Add an option for every field of `Size`."""
    size = parser.add_argument_group("size (default: the published network's)")
    for field in fields(Size):
        kind = float if field.name == "dropout" else int
        size.add_argument(f"--{field.name.replace('_', '-')}", type=kind, metavar="N")


def sized_step(options: argparse.Namespace) -> Step:
    """Return the step of the network and the size given on the command line."""
    recipe = RECIPES[options.net]
    return recipe.step(
        recipe.sized(**{field.name: getattr(options, field.name) for field in fields(Size)})
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m models.build",
        description="Build an ONNX training graph: loss, gradients, and maybe the update.",
        epilog="networks:\n"
        + "\n".join(f"  {name:12} {recipe.summary}" for name, recipe in RECIPES.items()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("net", choices=RECIPES, metavar="NET")
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="FILE")
    add_size_options(parser)
    graph = parser.add_argument_group("graph")
    graph.add_argument("--optimizer", choices=OPTIMIZERS, help="append the update (default: none)")
    graph.add_argument(
        "--dynamic-batch", action="store_true", help="leave the batch dimension symbolic"
    )
    graph.add_argument(
        "--params",
        choices=("inputs", "initializers"),
        default="inputs",
        help="parameters are graph inputs (default), or stored in the model",
    )
    graph.add_argument(
        "--external-data", action="store_true", help="store tensors in FILE.data, beside FILE"
    )
    graph.add_argument(
        "--sidecar", action="store_true", help="write FILE's .inputs.json: how to draw its inputs"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())

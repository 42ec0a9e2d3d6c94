"""`planner export`: a training graph from a PyTorch module."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from planner.cli import options as o
from planner.cli.console import Progress, emit_json, note, progress, verbosity
from planner.cli.forward import export_forward, summary_of
from planner.cli.outputs import check_outputs
from planner.errors import UsageError
from planner.report.plain import nearby
from planner.request.asking import configuration_of

if TYPE_CHECKING:
    from planner.export.training import ExportedGraph

StepName = Annotated[
    str,
    typer.Argument(
        metavar="MODULE:CALLABLE|hf:CONFIG|MODEL.onnx",
        help="The callable that makes the step, a transformers configuration, or a forward "
        "model; see below.",
        show_default=False,
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Exporting:
    """Options of the graph besides the step or the forward model."""

    output: Annotated[
        Path, typer.Option("-o", "--output", metavar="FILE", help="The model.", show_default=False)
    ]
    optimizer: Annotated[
        str | None,
        typer.Option(
            "--optimizer",
            metavar="NAME[:KEY=VALUE,...]",
            help="Append the update: sgd, momentum, adam, adamw, or a class of torch.optim with its "
            "settings, as in adamw:lr=1e-3,betas=0.9/0.95 [the gradients are the outputs].",
        ),
    ] = None
    dynamic_batch: Annotated[
        bool, typer.Option("--dynamic-batch", help="Leave the batch symbolic, as the dim batch.")
    ] = False
    dynamic: Annotated[
        list[str] | None,
        typer.Option(
            "--dynamic",
            metavar="INPUT=DIM,...",
            help="Make axes of an input symbolic, as in ids=batch,sequence; an empty place between "
            "commas keeps an axis fixed [repeatable].",
        ),
    ] = None
    params: Annotated[
        Literal["inputs", "initializers"],
        typer.Option("--params", help="Make parameters graph inputs, or store them in the model."),
    ] = "inputs"
    specialize: Annotated[
        bool,
        typer.Option(
            "--specialize",
            help="Fix the values that the module's Python code reads from tensors to those of "
            "the example inputs.",
        ),
    ] = False
    external_data: Annotated[
        bool, typer.Option("--external-data", help="Store tensors beside the model, in FILE.data.")
    ] = False
    sidecar: Annotated[
        bool,
        typer.Option(
            "--sidecar", help="Also write .inputs.json, which says how to draw the inputs."
        ),
    ] = False
    autocast: Annotated[
        Literal["bf16", "fp16"] | None,
        typer.Option("--autocast", help="Trace under torch.autocast in this type."),
    ] = None
    cast_for_cpu: Annotated[
        bool,
        typer.Option(
            "--cast-for-cpu",
            help="Cast around operators that have no bfloat16 kernel on the CPU, so that the "
            "graph runs there too.",
        ),
    ] = False
    random: Annotated[
        Literal["graph", "inputs"],
        typer.Option(
            "--random",
            help="Draw random numbers, such as dropout masks, in the graph, or make them inputs.",
        ),
    ] = "graph"
    no_check: Annotated[
        bool,
        typer.Option(
            "--no-check",
            help="Do not compare the graph with PyTorch's own step, which runs at other values.",
        ),
    ] = False
    loss: Annotated[
        str | None,
        typer.Option(
            "--loss",
            metavar="LOSS",
            help="For a forward model: mse or cross_entropy (of the first output, or of a named one, "
            "as in mse:logits), or the name of the output that is the loss.",
        ),
    ] = None
    train: Annotated[
        list[str] | None,
        typer.Option(
            "--train",
            metavar="PATTERN",
            help="For a forward model: initializers to train; may be repeated [weights, scales and "
            "biases].",
        ),
    ] = None
    freeze: Annotated[
        list[str] | None,
        typer.Option(
            "--freeze",
            metavar="PATTERN",
            help="For a forward model: initializers not to train; may be repeated.",
        ),
    ] = None

    def of_forward(self, dims: Mapping[str, int]) -> dict[str, Any]:
        """Arguments of `planner.export.from_onnx.forward.differentiate`."""
        return {
            "loss": self.loss,
            "optimizer": self.optimizer,
            "dims": dims,
            "train": self.train or (),
            "freeze": self.freeze or (),
            "check": not self.no_check,
        }


_ONLY_TORCH = (
    "dynamic_batch",
    "dynamic",
    "specialize",
    "sidecar",
    "autocast",
    "cast_for_cpu",
    "random",
    "params",
)
_ONLY_FORWARD = ("loss", "train", "freeze")
_FORWARD = "a forward model (MODEL.onnx), and this is a step in PyTorch"


@o.asks("export")
def export(
    step: StepName,
    *,
    wanted: Exporting,
    asked: o.Said,
    force: o.Force = False,
    json: o.Json = False,
) -> None:
    """Write the training graph of a PyTorch module or a forward model: loss, gradients, maybe the update.

    MODULE is a module on the path or in this folder, or a .py file. CALLABLE takes no arguments and
    returns a tuple: the module, example inputs (a tensor, a tuple, or a dict by keyword), the loss
    function of its result and the targets, the targets (likewise), the optimizer (of torch.optim, or
    a function: what the loop runs after loss.backward()). Without a loss function the module returns
    the loss itself, alone or as .loss.

    The graph is compared with PyTorch's own step: at the example inputs, and at other inputs and
    parameters, over three steps. A difference is an error.

    Needs PyTorch: pip install "onnx-planner[torch]".

    hf:CONFIG is a transformers configuration without weights: a config.json, its folder, or a model type
    (hf:gpt2). --dim batch=8 --dim seq=512 give its sizes. The graph can be planned as it is; to run it,
    feed the parameters.

    MODEL.onnx is a forward model, differentiated without PyTorch: pip install "onnx-planner[onnxsim]".
    Its weights become inputs, and FILE.initial.npz has their initial values. Normalizations keep their
    statistics, and dropout is not restored.

    \b
    A step, in train.py:
      def step():
          module = torch.nn.Linear(64, 10)
          inputs = {"input": torch.randn(32, 64)}
          targets = {"labels": torch.randint(10, (32,))}
          return module, inputs, torch.nn.functional.cross_entropy, targets

    \b
    Examples:
      planner export train.py:step -o model.onnx
      planner export train:step -o model.onnx --optimizer adamw --dynamic-batch --sidecar
      planner export hf:gpt2 -o gpt2.onnx --optimizer adamw --dim batch=8 --dim seq=512
      planner export resnet.onnx -o model.onnx --loss cross_entropy --optimizer adamw --dim batch=8
      planner export train:step -o model.onnx --optimizer sgd:lr=0.1,momentum=0.9,nesterov=true
    """
    if not step.endswith(".onnx"):
        _refuse(wanted, _ONLY_FORWARD, _FORWARD)
        if asked["dims"] and configuration_of(step) is None:
            raise UsageError(f"--dim and --shape are for hf:CONFIG, or {_FORWARD}")
        _export_step(step, wanted, asked["dims"] or {}, force=force, json=json)
        return
    _refuse(wanted, _ONLY_TORCH, "a step in PyTorch, and this is a forward model")
    export_forward(
        Path(step),
        wanted.output,
        wanted.of_forward(asked["dims"] or {}),
        external_data=wanted.external_data,
        force=force,
        json=json,
    )


def _export_step(
    step: str, wanted: Exporting, dims: Mapping[str, int], *, force: bool, json: bool
) -> None:
    """Trace a step of PyTorch's, write its graph, and say what it is."""
    from planner.export.torch_extra import require_torch

    require_torch()
    from planner.export.training import KernelWarning, ModeWarning
    from planner.export.write.files import data_path, sidecar_path

    output, sidecar, external = wanted.output, wanted.sidecar, wanted.external_data
    beside = [data_path(output)] * external + [sidecar_path(output)] * sidecar
    check_outputs(output, *beside, force=force)
    with progress() as report:
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            graph = _traced(step, wanted, dims, report)
        files = graph.save(output, external_data=external, sidecar=sidecar, force=force)
    for warning in said:
        if issubclass(warning.category, KernelWarning | ModeWarning):
            note(str(warning.message))
    summary = _summary(graph, files)
    if json:
        emit_json(summary)
    elif not verbosity.quiet:
        _print(summary)
        if graph.unchecked and not wanted.no_check:
            note(f"not compared with PyTorch's own step: {graph.unchecked}")
        for line in graph.assumed:
            note(f"assumed from the example inputs: {line}")
    note(f"wrote {', '.join(map(nearby, files))}")


def _traced(
    step: str, wanted: Exporting, dims: Mapping[str, int], report: Progress
) -> ExportedGraph:
    """The graph of a step.

    Args:
        dims: of a configuration (`hf:CONFIG`).

    Raises:
        UsageError: it cannot be imported, or has an optimizer of its own beside the one that is named.
    """
    from planner.export.callables import load_step
    from planner.export.configured import configured_step
    from planner.export.training import export_training_graph, half_type

    report(f"importing {step}")
    config = configuration_of(step)
    arguments = load_step(step) if config is None else configured_step(config, dims)
    dynamic_batch = arguments.pop("dynamic_batch", False)
    optimizer = wanted.optimizer
    if optimizer is not None and arguments.setdefault("optimizer", optimizer) is not optimizer:
        raise UsageError(
            f"{step} returns an optimizer, and --optimizer names one: give only one of the two"
        )
    report("tracing")
    return export_training_graph(
        **arguments,
        dynamic_batch=dynamic_batch or wanted.dynamic_batch,
        dynamic=_axes(wanted.dynamic) if wanted.dynamic else None,
        store_parameters=wanted.params == "initializers",
        specialize=wanted.specialize,
        autocast=half_type(wanted.autocast),
        cast_for_cpu=wanted.cast_for_cpu,
        random=wanted.random,
        check=not wanted.no_check,
    )


def _refuse(wanted: Exporting, names: tuple[str, ...], what: str) -> None:
    """Raise UsageError where an option is given that is for something else."""
    for each in fields(wanted):
        if each.name in names and getattr(wanted, each.name) != each.default:
            raise UsageError(f"--{each.name.replace('_', '-')} is for {what}")


def _axes(options: list[str]) -> dict[str, dict[int, str]]:
    """`["ids=batch,sequence"]` -> `{"ids": {0: "batch", 1: "sequence"}}`."""
    found: dict[str, dict[int, str]] = {}
    for option in options:
        name, equals, dims = option.rpartition("=")
        if not equals or not name or not dims.strip(","):
            raise UsageError(f"--dynamic {option!r} is not INPUT=DIM,..., as in ids=batch,sequence")
        found[name] = {axis: dim for axis, dim in enumerate(dims.split(",")) if dim}
    return found


def _summary(graph: ExportedGraph, files: tuple[Path, ...]) -> dict[str, Any]:
    proto = graph.model.graph
    symbols = {d.dim_param for i in proto.input for d in i.type.tensor_type.shape.dim}
    return {
        **summary_of(graph, files, graph.unchecked),
        "buffers": list(graph.buffers),
        "random": [draw.name for draw in graph.draws],
        "initializer_bytes": sum(len(tensor.raw_data) for tensor in proto.initializer),
        "symbolic_dims": sorted(symbols - {""}),
        "assumed": list(graph.assumed),
    }


def _print(summary: dict[str, Any]) -> None:
    dims = f"; symbolic: {', '.join(summary['symbolic_dims'])}" if summary["symbolic_dims"] else ""
    typer.echo(
        f"{summary['nodes']:,} nodes, {len(summary['graph_inputs']):,} inputs "
        f"({', '.join(summary['inputs'])}, then {len(summary['parameters']):,} trained parameters "
        f"and the rest), {len(summary['graph_outputs']):,} outputs{dims}"
    )

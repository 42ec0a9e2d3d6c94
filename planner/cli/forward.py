"""`planner export MODEL.onnx`: a training graph from a forward model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from planner.cli.console import emit, note, progress
from planner.cli.outputs import check_outputs
from planner.errors import UsageError
from planner.report.plain import nearby
from planner.units import some_of

if TYPE_CHECKING:
    from planner.export.from_onnx.forward import ForwardTraining
    from planner.export.training import ExportedGraph

EXPORT_SCHEMA = "planner.export/1"
_SHOWN = 3


def export_forward(
    path: Path,
    output: Path,
    wanted: Mapping[str, Any],
    *,
    external_data: bool,
    force: bool,
    json: bool,
) -> None:
    """Make the training graph, write it, and print its summary.

    Args:
        wanted: arguments of `planner.export.from_onnx.forward.differentiate`.
    """
    from planner.export.from_onnx.forward import differentiate

    if wanted["loss"] is None:
        raise UsageError(
            f"{path} is a forward model: give its loss with --loss (mse, cross_entropy, or the "
            "name of a scalar output)"
        )
    check_outputs(output, output.with_suffix(".initial.npz"), force=force)
    with progress() as report:
        report(f"differentiating {path}")
        graph = differentiate(path, **wanted)
        files = graph.save(output, external_data=external_data, force=force)
    summary = summary_of(graph, files, "" if wanted["check"] else "it was not asked for")
    text = (
        f"{summary['nodes']:,} nodes, {len(summary['graph_inputs']):,} inputs "
        f"({', '.join(graph.inputs)}, then {len(graph.parameters):,} trained parameters: "
        f"{some_of(list(graph.parameters), _SHOWN)}), {len(summary['graph_outputs']):,} outputs"
    )
    emit(summary, lambda _: typer.echo(text), json=json)
    note(f"wrote {', '.join(map(nearby, files))}")


def summary_of(
    graph: ExportedGraph | ForwardTraining, files: Sequence[Path], unchecked: str
) -> dict[str, Any]:
    """Return the document of an export: the part shared by graphs from PyTorch and from forward
    models.

    Args:
        unchecked: why the graph was not compared with its source; "" where it was.
    """
    from planner import __version__

    proto = graph.model.graph
    return {
        "schema": EXPORT_SCHEMA,
        "planner_version": __version__,
        "outputs": [str(file) for file in files],
        "nodes": len(proto.node),
        "inputs": list(graph.inputs),
        "parameters": list(graph.parameters),
        "optimizer_state": [item.name for item in graph.state],
        "graph_inputs": [info.name for info in proto.input],
        "graph_outputs": [info.name for info in proto.output],
        "unchecked": unchecked or None,
    }

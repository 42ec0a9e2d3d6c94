"""`planner export MODEL.onnx`: a training graph from a forward model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import typer

from planner.cli.console import emit_json, note, progress, verbosity
from planner.cli.outputs import check_outputs
from planner.errors import UsageError
from planner.report.plain import nearby

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
    """Make the graph, write it, and say what it is.

    Args:
        wanted: arguments of `planner.export.forward.differentiate`.
    """
    from planner import __version__
    from planner.cli.export import EXPORT_SCHEMA
    from planner.export.forward import differentiate

    if wanted["loss"] is None:
        raise UsageError(
            f"{path} is a forward model: say what is trained for with --loss (mse, cross_entropy, or the "
            "name of an output that is a scalar)"
        )
    check_outputs(output, output.with_suffix(".initial.npz"), force=force)
    with progress() as report:
        if report:
            report(f"differentiating {path}")
        graph = differentiate(path, **wanted)
        files = graph.save(output, external_data=external_data, force=force)
    proto = graph.model.graph
    trained = list(graph.parameters)
    if json:
        emit_json(
            {
                "schema": EXPORT_SCHEMA,
                "planner_version": __version__,
                "outputs": [str(file) for file in files],
                "nodes": len(proto.node),
                "inputs": list(graph.inputs),
                "parameters": trained,
                "optimizer_state": [item.name for item in graph.state],
                "graph_inputs": [info.name for info in proto.input],
                "graph_outputs": [info.name for info in proto.output],
                "unchecked": None if wanted["check"] else "it was not asked for",
            }
        )
    elif not verbosity.quiet:
        typer.echo(
            f"{len(proto.node):,} nodes, {len(proto.input):,} inputs ({', '.join(graph.inputs)}, then "
            f"{len(trained):,} trained parameters: {_some(trained)}), {len(proto.output):,} outputs"
        )
    note(f"wrote {', '.join(map(nearby, files))}")


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN:,} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more

"""The instances published with MOCCASIN and Checkmate: node-link graphs, one tensor a node.

Two dialects, told apart by their keys: `cost_ram` and `cost_cpu` with edges from `source` to `target`
(networks that Checkmate profiled), or `out_cost` and `duration` with edges from `"0"` to `"1"`
(random layered graphs of Bartan et al., ICML 2023, arXiv:2304.14463). Their memory model is ours: a
node's output is held from its computation to its last reader's, an output with no reader while it is
computed, and the operation that runs holds its inputs and its output together. Costs are unitless
integers; they are taken as microseconds and bytes.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import networkx as nx

from planner.plan.problem import Problem
from reports.solver.build import Builder

ORDER_GIVEN = "the file's"
ORDER_SORTED = "networkx.topological_sort"


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """One published graph: the problem in its base order, and the order's source."""

    problem: Problem
    order_source: str


def read(path: Path) -> Instance:
    """Read one instance.

    Raises:
        ValueError: not one of the two dialects, or a base order that is not topological.
    """
    data: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    graph, bytes_of, time_of = _graph(data, path)
    given = data["graph"].get("order")
    order = list(given) if given is not None else list(nx.topological_sort(graph))
    place = {node: i for i, node in enumerate(order)}
    if set(place) != set(graph) or any(place[u] >= place[v] for u, v in graph.edges):
        raise ValueError(f"{path}: the order in the file is not a topological order")
    builder = Builder()
    tensor: dict[Any, int] = {}
    for node in order:
        reads = sorted(tensor[u] for u in graph.predecessors(node))
        label = graph.nodes[node].get("name", node)
        (tensor[node],) = builder.op(str(label), time_of[node], reads, (bytes_of[node],))
    name = str(data["graph"].get("name", path.stem))
    return Instance(
        problem=builder.problem(name),
        order_source=ORDER_SORTED if given is None else ORDER_GIVEN,
    )


def read_folder(folder: Path, *, contains: str = "") -> dict[str, Path]:
    """Instance files in `folder` by name, the smallest file first."""
    found = sorted(folder.glob("*.json"), key=lambda p: (p.stat().st_size, p.name))
    return {p.stem: p for p in found if contains in p.stem}


def _graph(data: dict[str, Any], path: Path) -> tuple[nx.DiGraph, dict[Any, int], dict[Any, float]]:
    try:
        nodes, links = data["nodes"], data["links"]
        profiled = "cost_ram" in nodes[0]
        node_id, ram, time = (
            ("id", "cost_ram", "cost_cpu") if profiled else ("name", "out_cost", "duration")
        )
        start, end = ("source", "target") if "source" in links[0] else ("0", "1")
        graph = nx.DiGraph()
        for node in nodes:
            graph.add_node(node[node_id], name=node["name"])
        graph.add_edges_from((link[start], link[end]) for link in links)
        return (
            graph,
            {node[node_id]: int(node[ram]) for node in nodes},
            {node[node_id]: float(node[time]) for node in nodes},
        )
    except (KeyError, IndexError, TypeError) as error:
        raise ValueError(f"{path}: not a node-link graph with costs ({error!r})") from None


def short_name(name: str) -> str:
    """`ResNet50 (MLSys)_256_(224, 224, 3)_train_nx` -> `ResNet50 train`."""
    if name.startswith("random_layered_"):
        return f"random layered {name.split('_')[2]}"
    stem, _, rest = name.partition(" (MLSys)")
    return f"{stem} {'train' if 'train' in rest else 'test'}" if rest else name

"""The order of a region's chunks: one after the other, in as many stages as values leave it and come
back.

A region's result may come back to it through nodes outside, as the gradient of a feed-forward network
does: all chunks of the earlier part must have run by then. Therefore its nodes are in stages: a node
is in a later stage than the nodes that it needs through outside nodes, and in the stage of its
readers where only these read it. In each stage all of a chunk's nodes run before the next chunk's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import networkx as nx
import onnx_ir as ir

from planner.lower.chunks.regions import Ground, Region


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """The sort key of a node among those that are ready to run.

    Attributes:
        step: step of the old order, after which a stage's chunks come.
        region: step of the region's first node; -1 outside of regions.
        order: step of the old node.
        beside: -1 for a node that prepares its inputs, 1 for one that processes its result.
    """

    step: int
    region: int = -1
    stage: int = 0
    chunk: int = 0
    order: int = 0
    beside: int = 0

    def before(self) -> Place:
        """Return the place of a node that prepares this node's inputs."""
        return Place(self.step, self.region, self.stage, self.chunk, self.order, -1)

    def behind(self) -> Place:
        """Return the place of a node that processes this node's result."""
        return Place(self.step, self.region, self.stage, self.chunk, self.order, 1)


class Keys:
    """Places of the nodes of a model, by a topological order."""

    def __init__(self, ground: Ground, order: Sequence[str]) -> None:
        self.ground = ground
        self.order = order
        self.step = {name: i for i, name in enumerate(order)}

    def alone(self, name: str) -> Place:
        """Return the place of a node outside of regions."""
        return Place(self.step[name])

    def of(self, region: Region) -> Callable[[str, int], Place]:
        """Return a function from a region's node and chunk to its place."""
        stages = self._stages(region)
        begin = self._begin(region, stages)
        first = min(self.step[name] for name in region.ways)

        def place(name: str, chunk: int) -> Place:
            stage = stages[name]
            return Place(begin[stage], first, stage, chunk, self.step[name])

        return place

    def _stages(self, region: Region) -> dict[str, int]:
        ground, stages = self.ground, dict[str, int]()
        behind: dict[str, int] = {}  # the last stage that a node outside needs
        for name in self.order:
            way = region.ways.get(name)
            latest = -1
            for place, tensor in enumerate(ground.read(name)):
                maker = ground.producer.get(tensor)
                if maker is None:
                    continue
                if way is None:
                    latest = max(latest, stages.get(maker, behind.get(maker, -1)))
                elif maker in stages:
                    in_chunks = tensor in region.cuts and way.inputs[place] is not None
                    latest = max(latest, stages[maker] + (not in_chunks))
                else:
                    latest = max(latest, behind[maker] + 1)
            if way is None:
                behind[name] = latest
            else:
                stages[name] = max(0, latest)
        for name in reversed(self.order):
            if name in stages:
                readers = self._readers(region, name)
                if readers:
                    stages[name] = max(stages[name], min(stages[reader] for reader in readers))
        return stages

    def _readers(self, region: Region, name: str) -> list[str]:
        """Return the nodes that read a node's result; none where anything but chunks reads it."""
        ground, found = self.ground, list[str]()
        outputs = {str(v.name) for v in ground.model.graph.outputs}
        for tensor in filter(None, ground.made(name)):
            if tensor not in region.cuts or tensor in outputs:
                return []
            for reader in ground.consumers.get(tensor, ()):
                way = region.ways.get(reader)
                places = [i for i, t in enumerate(ground.read(reader)) if t == tensor]
                if way is None or any(way.inputs[i] is None for i in places):
                    return []
                found.append(reader)
        return found

    def _begin(self, region: Region, stages: Mapping[str, int]) -> dict[int, int]:
        """Return for each stage the step after which its chunks come, when all their inputs exist."""
        ground = self.ground
        first: dict[int, int] = {}
        needed: dict[int, int] = {}
        for name, stage in stages.items():
            first[stage] = min(first.get(stage, self.step[name]), self.step[name])
            for tensor in ground.read(name):
                maker = ground.producer.get(tensor)
                if maker is not None and maker not in stages:
                    needed[stage] = max(needed.get(stage, 0), self.step[maker])
        return {stage: max(first[stage], needed.get(stage, 0)) for stage in first}


def in_turn(nodes: Mapping[str, ir.Node], places: Mapping[str, Place]) -> list[str]:
    """Sort nodes topologically; of the nodes that are ready, the one of the least place comes first."""
    maker = {v: name for name, node in nodes.items() for v in node.outputs}
    graph: nx.DiGraph[str] = nx.DiGraph()
    graph.add_nodes_from(nodes)
    for name, node in nodes.items():
        graph.add_edges_from((maker[v], name) for v in node.inputs if v is not None and v in maker)
    return list(nx.lexicographical_topological_sort(graph, lambda name: (places[name], name)))

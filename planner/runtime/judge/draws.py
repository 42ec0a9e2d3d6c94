"""Make two models draw the same unseeded random numbers, for a comparison.

Without a `seed`, a kernel starts its generator from the session's seed plus the node's place in the
file (onnxruntime/core/providers/cpu/generator/random.h). A rewritten file has its nodes in other
places, and draws other numbers: as good, but not the same. For a comparison bit for bit, both models
run from memory with a seed given to each such node, the same in both.

A node is identified in both files by the first later value that both have by name: ONNX Runtime may
have expanded the operator into others meanwhile (Bernoulli becomes RandomUniformLike, Greater and
Cast).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import numpy.typing as npt
import onnx

from planner.graph.effects import Effect, effect_of
from planner.graph.model import Operation, TrainingGraph
from planner.results.verification import OutputComparison
from planner.runtime.inmemory import ModelInMemory
from planner.runtime.judge.compare import compare
from planner.runtime.options import Opening
from planner.units import counted

Array = npt.NDArray[Any]


def drawn_outputs(
    graph: TrainingGraph, kinds: Collection[Effect] = (Effect.RANDOM_UNSEEDED,)
) -> tuple[str, ...]:
    """Return the graph outputs that depend on random numbers (without a seed), in the graph's order."""
    return outputs_behind(graph, lambda op: op.effect in kinds)


def outputs_behind(graph: TrainingGraph, is_source: Callable[[Operation], bool]) -> tuple[str, ...]:
    """Return the graph outputs that depend on an operation of a kind, in the graph's order."""
    reached = {t for op in graph.operations if is_source(op) for t in op.outputs}
    stack = list(reached)
    while stack:
        for reader in graph.tensors[stack.pop()].consumers:
            new = set(graph.operations[reader].outputs) - reached
            reached |= new
            stack.extend(new)
    return tuple(graph.tensors[t].name for t in graph.outputs if t in reached)


def compare_draws(
    graph: TrainingGraph,
    paths: tuple[Path, Path],
    feeds: Callable[[], Mapping[str, Array]],
    *,
    openings: tuple[Opening, Opening],
    threads: int,
    seed: int,
) -> tuple[dict[str, OutputComparison], str]:
    """Compare the outputs that depend on unseeded random numbers, and say how that was done.

    Args:
        graph: the original's graph.
        paths: the original and the rewritten model; openings: level and order of each.
        feeds: makes the inputs of one run.
        seed: seed of the sessions.

    Returns:
        Comparisons by name (none where the two models cannot be made to draw alike), and one sentence.

    Raises:
        ModelError: ONNX Runtime cannot load or run a model.
    """
    drawn, what = drawn_outputs(graph), described(graph)
    pair = seeded_alike(*paths)
    if pair is None:
        return {}, f"{what}: they were not compared; give the nodes a seed attribute"
    found: list[dict[str, Array]] = []
    for model, how in zip(pair, openings, strict=True):
        opening = Opening(level=how.level, order=how.order, threads=threads)
        found.append(model.run(feeds(), opening=opening, seed=seed))
    first, second = found
    alike = {name: compare(name, first[name], second[name]) for name in drawn}
    return alike, f"{what}: they were compared with a seed given to these nodes in both"


def described(graph: TrainingGraph) -> str:
    """Describe the outputs that depend on unseeded random numbers, as the beginning of a sentence."""
    drawn = drawn_outputs(graph)
    nodes = [op.name for op in graph.operations if op.effect is Effect.RANDOM_UNSEEDED]
    return (
        f"{counted(len(drawn), 'output')}, first {drawn[0]!r}, depend on random numbers without a seed "
        f"({counted(len(nodes), 'node')}, first {nodes[0]!r}), which ONNX Runtime draws differently for "
        "each file"
    )


def seeded_alike(original: Path, rewritten: Path) -> tuple[ModelInMemory, ModelInMemory] | None:
    """Return both models with the same seeds; None where a node cannot be matched between them."""
    protos = [onnx.load(path, load_external_data=False) for path in (original, rewritten)]
    if any(_draws(function.node) for proto in protos for function in proto.functions):
        return None
    names = [{name for node in proto.graph.node for name in node.output} for proto in protos]
    shared = set.intersection(*names) - {""}
    found = [_by_value(proto.graph, shared) for proto in protos]
    if found[0] is None or found[1] is None or set(found[0]) != set(found[1]):
        return None
    for draws in found:
        for number, value in enumerate(sorted(draws or ()), start=1):
            assert draws is not None
            draws[value].attribute.append(onnx.helper.make_attribute("seed", float(number)))
    first, second = (
        ModelInMemory(data=proto.SerializeToString(), folder=path.parent)
        for proto, path in zip(protos, (original, rewritten), strict=True)
    )
    return first, second


def _draws(nodes: Any) -> list[onnx.NodeProto]:
    """Return the nodes that draw random numbers without a seed."""
    return [
        node
        for node in nodes
        if effect_of(node.op_type, node.domain, {a.name: a for a in node.attribute})
        is Effect.RANDOM_UNSEEDED
    ]


def _by_value(graph: onnx.GraphProto, shared: set[str]) -> dict[str, onnx.NodeProto] | None:
    """Return random nodes by the first shared value after each; None where two have the same."""
    readers: dict[str, list[onnx.NodeProto]] = {}
    for node in graph.node:
        for name in node.input:
            readers.setdefault(name, []).append(node)
    found: dict[str, onnx.NodeProto] = {}
    for draw in _draws(graph.node):
        value = _first_shared(draw, readers, shared)
        if value is None or value in found:
            return None
        found[value] = draw
    return found


def _first_shared(
    draw: onnx.NodeProto, readers: Mapping[str, list[onnx.NodeProto]], shared: set[str]
) -> str | None:
    level, seen = list(draw.output), set(draw.output)
    while level:
        here = [name for name in level if name in shared]
        if here:
            return here[0]
        level = [o for n in level for reader in readers.get(n, ()) for o in reader.output]
        level = [name for name in dict.fromkeys(level) if name not in seen]
        seen.update(level)
    return None

"""Let ONNX Runtime optimize a model first, so that the plan is made for the graph that will run.

ONNX Runtime fuses and folds nodes when it loads a model. A plan made on the graph before that would
be undone. So the model is optimized once, written out (`SessionOptions.optimized_model_filepath`),
and planned as it then stands: loading that file again, at any optimization level, changes nothing
more. Everything that ONNX Runtime adds to the file and that is not the graph (operator sets that no
node uses, its own metadata, copies of initializers) is put back as it was.
"""

from __future__ import annotations

import filecmp
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from planner.errors import ModelError
from planner.files.temporary import temporary_folder
from planner.graph.model import Placement
from planner.graph.rules import COPIES
from planner.onnxio.bodies import reads
from planner.onnxio.load import LoadedModel, read_model
from planner.onnxio.names import name_nodes
from planner.runtime.device.client import optimize
from planner.runtime.device.copies import name_copies
from planner.runtime.messages import explain
from planner.runtime.optimizers.large_fills import Fill, large_fills, with_fills, without_fills
from planner.runtime.optimizers.roundings import keep_roundings
from planner.runtime.optimizers.settled import settle
from planner.runtime.optimizers.shapes import without_large_initializers
from planner.runtime.options import Level, asking_options
from planner.targets import HOST, Target

MAX_PASSES = 10

LARGE_FILES_BYTES = 1 << 30
"""Initializers in files that take more are neither loaded nor copied."""

Written = Callable[[], Path]
"""Gives a file that a session has written, once it has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Normalized:
    """A model as a target's optimizers leave it, and where its nodes run there.

    Attributes:
        placement: None where there is one memory.
        first: what the first pass leaves, where later ones change more: what a session of the file
            runs, in one memory.
        renamed: names of ONNX Runtime's own copies in `model`, by what a session calls them.
        executed: the first output of each node of the first pass, as ONNX Runtime writes them: in the
            order in which a session of the file runs them, as a rule (core/graph/graph.cc,
            `ToGraphProto`; not around nodes with bodies).
        confirmed: waits for the passes after the first, and gives what they leave; None where that is
            this. None itself where all have been made.
    """

    model: ir.Model
    placement: Placement | None
    first: ir.Model | None = None
    renamed: Mapping[str, str] = field(default_factory=dict)
    executed: tuple[str, ...] = ()
    confirmed: Callable[[], Normalized | None] | None = None


def normalize(loaded: LoadedModel, *, passes: int = MAX_PASSES) -> ir.Model:
    """The model as a default session's optimizations leave it for the CPU: see `normalize_for`."""
    return normalize_for(loaded, HOST, passes=passes).model


def normalize_for(
    loaded: LoadedModel,
    target: Target,
    *,
    level: Level = "all",
    passes: int = MAX_PASSES,
    written: Sequence[Written] = (),
) -> Normalized:
    """The model as ONNX Runtime's optimizations leave it for a target.

    Optimized again until nothing changes: one pass is not always a fixed point (a merge of equal
    nodes can make others equal). Initializers that survive keep their original tensors, by
    reference; nodes get unique names.

    Args:
        target: for which the graph is optimized.
        level: of the optimizations: "all" as in a default session; "extended" leaves images in the
            plain layout; "disabled" leaves the graph as it is but for what every session does: constants
            become initializers, casts go where there is no kernel for a type, each reader of a
            DequantizeLinear gets its own, and there are copies between memories.
        passes: at most so many; one is enough where nothing will be rewritten.
        written: give files of the graph after the first passes, where sessions of this level have
            written them. For one memory.

    Raises:
        UsageError: the target's device is not here.
        ModelError: ONNX Runtime cannot load the model, with its reason.
    """
    placed: dict[str, bool] = {}
    external = loaded.has_external_data and not is_of_large_files(loaded)
    with temporary_folder() as folder:
        source, fills = _source(loaded, level, folder)
        before = _node_keys(loaded.model)
        model, first, output = loaded.model, loaded.model, source
        for number in range(passes):
            output = folder / f"optimized_{number}.onnx"
            if number < len(written) and (number or source == loaded.path):
                output = written[number]()
            elif target.own_memory:
                placed |= optimize(target, source, output, level=level, external=external)
            else:
                optimize_file(source, output, external=external, level=level)
            if number and filecmp.cmp(source, output, shallow=False):
                break
            model, output = _read_pass(
                loaded, target, level, output, folder / f"kept_{number}.onnx"
            )
            first = first if number else model
            after = _node_keys(model)
            if after == before:
                break
            source, before = output, after
        if target.own_memory and not _names(model) <= placed.keys():
            # fusions come after placement: what they made is placed when the file is read again
            placed |= optimize(target, output, folder / "placed.onnx", level="disabled")
        for made in (model, first) if _is_another(first, model) else (model,):
            _put_back(made, loaded, fills)
    if target.own_memory:
        return _of_device(model, target, placed)
    return _of_one_memory(model, first)


def _of_device(model: ir.Model, target: Target, placed: Mapping[str, bool]) -> Normalized:
    """The model, its nodes placed.

    Args:
        placed: whether a node runs on the device, by name.
    """
    renamed = name_copies(model, target.provider)
    on_cpu = frozenset(name for name in _names(model) if not placed[name])
    placement = Placement(on_cpu=on_cpu, inplace=target.inplace)
    return Normalized(model=model, placement=placement, renamed=renamed)


def _put_back(made: ir.Model, loaded: LoadedModel, fills: tuple[Fill, ...]) -> None:
    """Put back what `_source` left out, and the original's tensors."""
    if is_of_large_files(loaded):
        _list_initializers(made, loaded.model)
    with_fills(made, fills)
    _restore(made, loaded.model)


def _source(loaded: LoadedModel, level: Level, folder: Path) -> tuple[Path, tuple[Fill, ...]]:
    """(the file that is optimized: the model's own, or without what would make it large; the fills that
    are left out)."""
    source = loaded.path
    fills = () if level == "disabled" or loaded.has_external_data else large_fills(loaded.model)
    if is_of_large_files(loaded):
        source = folder / "without_data.onnx"
        ir.save(without_large_initializers(loaded.model), source)
    if fills:
        source = folder / "without_fills.onnx"
        ir.save(without_fills(loaded.model, fills), source)
    return source, fills


def _read_pass(
    loaded: LoadedModel, target: Target, level: Level, output: Path, kept: Path
) -> tuple[ir.Model, Path]:
    """(the model that a pass wrote to `output`, as it is planned; its file, which is `kept` where it had
    to be changed)."""
    model = read_model(output)
    if level == "all":
        settle(model, loaded.model)
    if keep_roundings(model):
        output = kept
        ir.save(model, output)
    if target.own_memory and name_nodes(model):
        ir.save(model, output)  # where a node runs is asked by its name
    return model, output


def _of_one_memory(model: ir.Model, first: ir.Model) -> Normalized:
    """The model that all passes left, and what the first did."""
    executed = tuple(next(str(v.name) for v in n.outputs if v.name) for n in first.graph)
    name_nodes(model)
    if not _is_another(first, model):
        return Normalized(model=model, placement=None, executed=executed)
    name_nodes(first)
    return Normalized(model=model, placement=None, first=first, executed=executed)


def normalize_ahead(loaded: LoadedModel, written: Path) -> Normalized:
    """What the first pass of a default session's optimizations leaves for the CPU, while others are made
    in a thread (ONNX Runtime lets go of the interpreter meanwhile).

    Args:
        loaded: without data apart, and without large fills; see `may_go_ahead`.
        written: the file of the first pass.

    Raises:
        ModelError: as for `normalize_for`, here or where the result's `confirmed` is asked.
    """

    def others() -> Normalized | None:
        with temporary_folder() as folder:
            kept, again = written, folder / "again.onnx"
            if keep_roundings(model := read_model(written)):
                kept = folder / "kept.onnx"
                ir.save(model, kept)
            optimize_file(kept, again, external=False, level="all")
            if filecmp.cmp(kept, again, shallow=False):
                return None
            return normalize_for(loaded, HOST, written=(lambda: written, lambda: again))

    pool = ThreadPoolExecutor(1)
    running = pool.submit(others)
    pool.shutdown(wait=False)
    first = normalize_for(loaded, HOST, passes=1, written=(lambda: written,))
    return replace(first, confirmed=running.result)


def fused_beside(loaded: LoadedModel, model: ir.Model) -> Normalized:
    """What the level ALL leaves for the CPU of a model that was made of a file.

    Args:
        loaded: the file, without data apart.
        model: of which the session would be.

    Raises:
        ModelError: ONNX Runtime cannot load the model.
    """
    with temporary_folder() as folder:
        path = folder / "model.onnx"
        _sort_as(model, loaded.model)
        ir.save(model, path)
        return normalize_for(replace(loaded, path=path, model=model), HOST)


def _sort_as(model: ir.Model, file: ir.Model) -> None:
    """Put the nodes in the order of the file's, as far as that goes: of two convolutions that are added,
    the one that comes first takes the sum in (core/optimizer/conv_add_act_fusion.cc), and the other way
    round last bits differ."""
    place = {value.name: i for i, node in enumerate(file.graph) for value in node.outputs}
    nodes = list(model.graph)
    graph = nx.DiGraph()
    graph.add_nodes_from(range(len(nodes)))
    made = {value: i for i, node in enumerate(nodes) for value in node.outputs}
    for i, node in enumerate(nodes):
        graph.add_edges_from((made[value], i) for value in reads(node) if value in made)

    def key(i: int) -> int:  # what the file does not have comes as soon as it can
        return min((place.get(value.name, -1) for value in nodes[i].outputs), default=-1)

    order = list(nx.lexicographical_topological_sort(graph, key))
    model.graph.remove(nodes)
    model.graph.extend(nodes[i] for i in order)


def may_go_ahead(loaded: LoadedModel, target: Target) -> bool:
    """Whether `normalize_ahead` is for this model and target."""
    is_apart = loaded.has_external_data or large_fills(loaded.model)
    return target.is_host and not is_apart


def added_nodes(before: ir.Model, after: ir.Model) -> list[str]:
    """Names of the nodes that are not in an earlier pass's result, or are of another operator there."""
    return [name for _, _, name in _node_keys(after) - _node_keys(before)]


def _names(model: ir.Model) -> set[str]:
    """Names of the nodes that are no copies."""
    return {str(node.name) for node in model.graph if node.op_type not in COPIES}


def _is_another(one: ir.Model, other: ir.Model) -> bool:
    return one is not other and (
        _node_keys(one) != _node_keys(other)
        or one.graph.initializers.keys() != other.graph.initializers.keys()
    )


def _node_keys(model: ir.Model) -> Counter[tuple[str, str, str]]:
    return Counter((node.domain, node.op_type, str(node.name)) for node in model.graph.all_nodes())


def optimize_file(source: Path, target: Path, *, external: bool, level: Level) -> None:
    """Write a model as ONNX Runtime's optimizers of a level leave it for the CPU.

    Args:
        external: initializers of 1 KiB and more go to a file beside it.

    Raises:
        ModelError: ONNX Runtime cannot load the model.
    """
    import onnxruntime as ort

    options = asking_options(level)
    options.optimized_model_filepath = str(target)
    if external:
        options.add_session_config_entry(
            "session.optimized_model_external_initializers_file_name", f"{target.stem}.data"
        )
        options.add_session_config_entry(
            "session.optimized_model_external_initializers_min_size_in_bytes", "1024"
        )
    try:
        ort.InferenceSession(str(source), options, providers=[HOST.provider])
    except Exception as error:
        raise ModelError(f"{source}: {explain(str(error))}") from error


def _is_same(before: ir.TensorProtocol | None, after: ir.TensorProtocol | None) -> bool:
    """Whether an initializer is unchanged: an optimizer may permute one under its own name
    (core/optimizer/transpose_optimization), and the old value is then wrong for the new graph."""
    if before is None or after is None:
        return False
    if before is after:
        return True
    if before.dtype != after.dtype or tuple(before.shape) != tuple(after.shape):
        return False
    return bool(np.array_equal(_bits(before), _bits(after)))


def _bits(tensor: ir.TensorProtocol) -> npt.NDArray[Any]:
    if tensor.dtype == ir.DataType.STRING:
        return tensor.numpy()
    return np.ascontiguousarray(tensor.numpy()).reshape(-1).view(np.uint8)


def is_of_large_files(loaded: LoadedModel) -> bool:
    """Whether a model's initializers are read by ONNX Runtime alone, in the sessions that run it: so much
    of them lies in files that copies of it would be a burden. The optimizers are shown the graph without
    them, and the initializers are listed as graph inputs, too: a session then folds none of them."""
    values = loaded.model.graph.initializers.values()
    tensors = [v.const_value for v in values if isinstance(v.const_value, ir.ExternalTensor)]
    return sum(tensor.nbytes for tensor in tensors) > LARGE_FILES_BYTES


def _list_initializers(model: ir.Model, original: ir.Model) -> None:
    """Make initializers, listed as inputs, of those inputs that stand for one."""
    for value in model.graph.inputs:
        source = original.graph.initializers.get(str(value.name))
        if source is not None:
            value.const_value = source.const_value
            model.graph.register_initializer(value)


def _restore(model: ir.Model, original: ir.Model) -> None:
    """Put back what is not the graph, and load what only lives in a temporary file."""
    known = {v.name for v in original.graph.inputs}
    for value in list(model.graph.inputs):
        # a constant that it has folded: files of before IR version 4 list all of them
        if value.name not in known and value.const_value is None and not value.uses():
            model.graph.inputs.remove(value)
    for side in ("inputs", "outputs"):
        before = [v.name for v in getattr(original.graph, side)]
        mine = set(original.graph.initializers) - set(before) if side == "inputs" else ()
        after = [v.name for v in getattr(model.graph, side) if v.name not in mine]
        if before != after:
            raise ModelError(
                f"ONNX Runtime's optimizers changed the graph {side}; use --no-ort-optimize"
            )
        # it writes what it infers; the file keeps what its author declared
        values = [v for v in getattr(model.graph, side) if v.name not in mine]
        for known, value in zip(getattr(original.graph, side), values, strict=True):
            value.shape, value.type = known.shape, known.type
    for name, value in model.graph.initializers.items():
        source = original.graph.initializers.get(name)
        if source is not None and _is_same(source.const_value, value.const_value):
            value.const_value = source.const_value
        elif isinstance(value.const_value, ir.ExternalTensor):
            array = value.const_value.numpy().copy()
            value.const_value = ir.Tensor(array, name=name)
    used = {node.domain for node in model.graph.all_nodes()}
    imports = dict(model.graph.opset_imports)
    model.graph.opset_imports.clear()
    model.graph.opset_imports.update(original.graph.opset_imports)
    for domain in sorted(used):
        model.graph.opset_imports.setdefault(domain, imports.get(domain, 1))
    model.ir_version = original.ir_version
    model.producer_name = original.producer_name
    model.producer_version = original.producer_version
    model.doc_string = original.doc_string
    model.domain = original.domain
    model.model_version = original.model_version
    model.graph.name = original.graph.name
    model.graph.doc_string = original.graph.doc_string
    model.metadata_props.clear()
    model.metadata_props.update(original.metadata_props)

"""Let ONNX Runtime optimize a model first: the plan is then made for the graph that will run.

ONNX Runtime fuses and folds nodes when it loads a model, which would undo a plan made on the graph
before. Therefore the model is optimized once, written out
(`SessionOptions.optimized_model_filepath`), and planned in that form: loading that file again, at any
optimization level, changes nothing more. Additions of ONNX Runtime outside of the graph (operator
sets that no node uses, its own metadata, copies of initializers) are replaced by the original's.
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
"""Above this size, initializers in external files are neither loaded nor copied."""

Written = Callable[[], Path]
"""Waits for a file that a session writes, and returns its path."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Normalized:
    """A model as a target's optimizers leave it, with the placement of its nodes.

    Attributes:
        placement: the nodes' placement; None with a single memory.
        first: the model after the first pass, which a session of the file runs, where later passes change
            it further; only with a single memory.
        renamed: names of ONNX Runtime's own copies in `model`, by their names in a session.
        executed: the first output of each node of the first pass, in ONNX Runtime's file order: usually
            the order in which a session of the file runs them (core/graph/graph.cc, `ToGraphProto`; not
            around nodes with bodies).
        confirmed: waits for the passes after the first, and returns their result, or None where it equals
            this one. None itself where all passes are done.
    """

    model: ir.Model
    placement: Placement | None
    first: ir.Model | None = None
    renamed: Mapping[str, str] = field(default_factory=dict)
    executed: tuple[str, ...] = ()
    confirmed: Callable[[], Normalized | None] | None = None


def normalize(loaded: LoadedModel, *, passes: int = MAX_PASSES) -> ir.Model:
    """Return the model as a default session's optimizations leave it for the CPU; see
    `normalize_for`."""
    return normalize_for(loaded, HOST, passes=passes).model


def normalize_for(
    loaded: LoadedModel,
    target: Target,
    *,
    level: Level = "all",
    passes: int = MAX_PASSES,
    written: Sequence[Written] = (),
) -> Normalized:
    """Return the model as ONNX Runtime's optimizations leave it for a target.

    Passes repeat until nothing changes: one pass is not always a fixed point (a merge of equal nodes can
    make others equal). Initializers that survive keep their original tensors, by reference; nodes get
    unique names.

    Args:
        target: the target for which the graph is optimized.
        level: level of the optimizations: "all" as in a default session; "extended" leaves images in the
            plain layout; "disabled" makes only the changes of every session: constants become
            initializers, casts surround nodes without a kernel for a type, each reader of a
            DequantizeLinear gets its own, and copies are added between memories.
        passes: the most passes; one is enough where nothing will be rewritten.
        written: files of the graph after the first passes, where sessions of this level have written
            them; only with a single memory.

    Raises:
        UsageError: the target's device is not available.
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
            # fusions come after placement: their nodes are placed when the file is read again
            placed |= optimize(target, output, folder / "placed.onnx", level="disabled")
        for made in (model, first) if _is_another(first, model) else (model,):
            _put_back(made, loaded, fills)
    if target.own_memory:
        return _of_device(model, target, placed)
    return _of_one_memory(model, first)


def _of_device(model: ir.Model, target: Target, placed: Mapping[str, bool]) -> Normalized:
    """Return the model with its nodes placed.

    Args:
        placed: whether a node runs on the device, by name.
    """
    renamed = name_copies(model, target.provider)
    on_cpu = frozenset(name for name in _names(model) if not placed[name])
    placement = Placement(on_cpu=on_cpu, inplace=target.inplace)
    return Normalized(model=model, placement=placement, renamed=renamed)


def _put_back(made: ir.Model, loaded: LoadedModel, fills: tuple[Fill, ...]) -> None:
    """Put back the parts that `_source` left out, and the original's tensors."""
    if is_of_large_files(loaded):
        _list_initializers(made, loaded.model)
    with_fills(made, fills)
    _restore(made, loaded.model)


def _source(loaded: LoadedModel, level: Level, folder: Path) -> tuple[Path, tuple[Fill, ...]]:
    """Return (the file to optimize, the fills that were left out of it).

    The file is the model's own, or a copy without its large parts.
    """
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
    """Return (the model that a pass wrote to `output`, its file).

    The file is `kept` where the model had to be changed.
    """
    model = read_model(output)
    if level == "all":
        settle(model, loaded.model)
    if keep_roundings(model):
        output = kept
        ir.save(model, output)
    if target.own_memory and name_nodes(model):
        ir.save(model, output)  # a node's placement is looked up by its name
    return model, output


def _of_one_memory(model: ir.Model, first: ir.Model) -> Normalized:
    """Return the result of all passes, and that of the first."""
    executed = tuple(next(str(v.name) for v in n.outputs if v.name) for n in first.graph)
    name_nodes(model)
    if not _is_another(first, model):
        return Normalized(model=model, placement=None, executed=executed)
    name_nodes(first)
    return Normalized(model=model, placement=None, first=first, executed=executed)


def normalize_ahead(loaded: LoadedModel, written: Path) -> Normalized:
    """Return the model after the first pass of a default session's optimizations for the CPU.

    A thread makes the further passes meanwhile (ONNX Runtime releases the interpreter's lock); the
    result's `confirmed` waits for them.

    Args:
        loaded: a model without external data and large fills; `OriginalAhead` begins a session for
            no other.
        written: the file of the first pass.

    Raises:
        ModelError: see `normalize_for`; raised here or by the result's `confirmed`.
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
    """Return a model that was made from a file, as the level ALL leaves it for the CPU.

    Args:
        loaded: the file, without external data.
        model: the model to optimize.

    Raises:
        ModelError: ONNX Runtime cannot load the model.
    """
    with temporary_folder() as folder:
        path = folder / "model.onnx"
        _sort_as(model, loaded.model)
        ir.save(model, path)
        return normalize_for(replace(loaded, path=path, model=model), HOST)


def _sort_as(model: ir.Model, file: ir.Model) -> None:
    """Sort the nodes in the file's order, as far as possible.

    Of two convolutions that are added, the sum is fused into the first
    (core/optimizer/conv_add_act_fusion.cc); another order changes last bits.
    """
    place = {value.name: i for i, node in enumerate(file.graph) for value in node.outputs}
    nodes = list(model.graph)
    graph = nx.DiGraph()
    graph.add_nodes_from(range(len(nodes)))
    made = {value: i for i, node in enumerate(nodes) for value in node.outputs}
    for i, node in enumerate(nodes):
        graph.add_edges_from((made[value], i) for value in reads(node) if value in made)

    def key(i: int) -> int:  # new nodes come as early as they can
        return min((place.get(value.name, -1) for value in nodes[i].outputs), default=-1)

    order = list(nx.lexicographical_topological_sort(graph, key))
    model.graph.remove(nodes)
    model.graph.extend(nodes[i] for i in order)


def added_nodes(before: ir.Model, after: ir.Model) -> list[str]:
    """Return the names of nodes that an earlier pass's result lacks, or has with another operator."""
    return [name for _, _, name in _node_keys(after) - _node_keys(before)]


def _names(model: ir.Model) -> set[str]:
    """Return the names of the nodes that are no copies."""
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
        external: whether initializers of 1 KiB and more go to a file beside it.

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
    """Tell whether an initializer is unchanged.

    An optimizer may permute one under its own name (core/optimizer/transpose_optimization), and the
    old value is then wrong for the new graph.
    """
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
    """Tell whether too much of a model's initializers lies in external files to be copied.

    Only the sessions that run the model read them. The optimizers see the graph without them, with
    the initializers listed as graph inputs too: a session then folds none of them.
    """
    values = loaded.model.graph.initializers.values()
    tensors = [v.const_value for v in values if isinstance(v.const_value, ir.ExternalTensor)]
    return sum(tensor.nbytes for tensor in tensors) > LARGE_FILES_BYTES


def _list_initializers(model: ir.Model, original: ir.Model) -> None:
    """Turn inputs that stand for an initializer back into initializers that are listed as inputs."""
    for value in model.graph.inputs:
        source = original.graph.initializers.get(str(value.name))
        if source is not None:
            value.const_value = source.const_value
            model.graph.register_initializer(value)


def _restore(model: ir.Model, original: ir.Model) -> None:
    """Restore everything outside of the graph, and load tensors that lie only in a temporary file."""
    known = {v.name for v in original.graph.inputs}
    for value in list(model.graph.inputs):
        # a constant that was folded: files before IR version 4 list all of them as inputs
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
        # ONNX Runtime writes inferred shapes; the file keeps the declared ones
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

"""Let ONNX Runtime optimize a model first, so that the plan is made for the graph that will run.

ONNX Runtime fuses and folds nodes when it loads a model. A plan made on the graph before that would
be undone. So the model is optimized once, written out (`SessionOptions.optimized_model_filepath`),
and planned as it then stands: loading that file again, at any optimization level, changes nothing
more. Everything that ONNX Runtime adds to the file and that is not the graph (operator sets that no
node uses, its own metadata, copies of initializers) is put back as it was.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path
from typing import Literal

import onnx_ir as ir

from planner.errors import ModelError
from planner.onnxio.check import BLOCKED_LAYOUT
from planner.onnxio.load import LoadedModel
from planner.onnxio.names import name_nodes
from planner.runtime.messages import explain

MAX_PASSES = 10


def normalize(
    loaded: LoadedModel,
    *,
    providers: tuple[str, ...] = ("CPUExecutionProvider",),
    passes: int = MAX_PASSES,
) -> ir.Model:
    """The model as ONNX Runtime's EXTENDED optimizations leave it for `providers`.

    Optimized again until nothing changes: one pass is not always a fixed point (a merge of equal
    nodes can make others equal). Initializers that survive keep their original tensors, by
    reference; nodes get unique names.

    Args:
        passes: at most so many; one is enough where nothing will be rewritten.

    Raises:
        ModelError: ONNX Runtime cannot load the model, with its reason.
    """
    with tempfile.TemporaryDirectory(prefix="planner-") as folder:
        source, before = loaded.path, _node_keys(loaded.model)
        model = loaded.model
        for number in range(passes):
            target = Path(folder) / f"optimized_{number}.onnx"
            _optimize(source, target, providers, external=loaded.has_external_data)
            model = ir.load(target)
            after = _node_keys(model)
            if after == before:
                break
            source, before = target, after
        _restore(model, loaded.model)
    name_nodes(model)
    return model


def blocked_convolutions(loaded: LoadedModel) -> tuple[str, ...]:
    """Convolutions that a session of default options lays out anew, in blocks of channels (NCHWc).

    ONNX Runtime does so on the CPU where the weights are constants, with other operators in between,
    at its level ALL alone. No plan survives it.

    Raises:
        ModelError: ONNX Runtime cannot load the model.
    """
    graph = loaded.model.graph
    fixed = {name for name, value in graph.initializers.items() if value not in graph.inputs}
    convolutions = tuple(
        str(node.name or node.outputs[0].name)
        for node in graph
        if node.op_type in ("Conv", "FusedConv")
        and (weight := node.inputs[1]) is not None
        and weight.name in fixed
    )
    if not convolutions:
        return ()
    with tempfile.TemporaryDirectory(prefix="planner-") as folder:
        target = Path(folder) / "all.onnx"
        external = loaded.has_external_data
        _optimize(loaded.path, target, ("CPUExecutionProvider",), external=external, level="ALL")
        blocked = any(node.domain == BLOCKED_LAYOUT for node in ir.load(target).graph)
    return convolutions if blocked else ()


def _node_keys(model: ir.Model) -> Counter[tuple[str, str, str]]:
    return Counter((node.domain, node.op_type, str(node.name)) for node in model.graph)


def _optimize(
    source: Path,
    target: Path,
    providers: tuple[str, ...],
    *,
    external: bool,
    level: Literal["EXTENDED", "ALL"] = "EXTENDED",
) -> None:
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = 1  # nothing is run
    options.log_severity_level = 4
    options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, f"ORT_ENABLE_{level}")
    options.optimized_model_filepath = str(target)
    if external:
        options.add_session_config_entry(
            "session.optimized_model_external_initializers_file_name", f"{target.stem}.data"
        )
        options.add_session_config_entry(
            "session.optimized_model_external_initializers_min_size_in_bytes", "1024"
        )
    try:
        ort.InferenceSession(str(source), options, providers=list(providers))
    except Exception as error:
        raise ModelError(f"{source}: {explain(str(error))}") from error


def _restore(model: ir.Model, original: ir.Model) -> None:
    """Put back what is not the graph, and load what only lives in a temporary file."""
    for side in ("inputs", "outputs"):
        before = [v.name for v in getattr(original.graph, side)]
        after = [v.name for v in getattr(model.graph, side)]
        if before != after:
            raise ModelError(
                f"ONNX Runtime's optimizers changed the graph {side}; use --no-ort-optimize"
            )
    for name, value in model.graph.initializers.items():
        source = original.graph.initializers.get(name)
        if source is not None and source.const_value is not None:
            value.const_value = source.const_value
        elif isinstance(value.const_value, ir.ExternalTensor):
            array = value.const_value.numpy().copy()
            value.const_value = ir.Tensor(array, name=name)
    used = {node.domain for node in model.graph}
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

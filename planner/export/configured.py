"""Training steps of transformers models from their configuration alone: no weights, no network.

`hf:CONFIG` names a config.json or the folder that holds it, a model type (`hf:gpt2`, in the default sizes
of its class), or a model whose configuration is in the local cache of the Hub.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import nn

from planner.errors import UsageError
from planner.request.asking import HUB

BATCH, SEQ = "batch", "seq"
MOST_SEQ = 1024
"""Default sequence length in tokens, for models that take as many."""

_EXAMPLE_BATCH = 2  # a batch of 1 would be traced as a constant
_DIMS = {"input_ids": (BATCH, SEQ), "pixel_values": (BATCH,)}
_TASKS = (
    "AutoModelForMaskedLM",
    "AutoModelForCausalLM",
    "AutoModelForImageClassification",
    "AutoModelForSequenceClassification",
)
_OF_TWO_PARTS = ("AutoModelForSeq2SeqLM",)  # its decoder alone would be another model
_A_LABEL_EACH = ("ForSequenceClassification", "ForImageClassification")
_A_LABEL_A_TOKEN = (
    "ForCausalLM",
    "LMHeadModel",
    "ForMaskedLM",
    "ForConditionalGeneration",
    "ForTokenClassification",
)


def configured_step(source: str, dims: Mapping[str, int]) -> dict[str, Any]:
    """Build the module on the meta device, in float32, and its inputs with labels.

    Args:
        source: the text after `hf:`.
        dims: size of `batch`, which stays symbolic if missing; for text also `seq`, by default as many
            tokens as the model takes, 1,024 at most.

    Returns:
        Arguments of `planner.export.training.export_training_graph`.

    Raises:
        UsageError: transformers is missing, the configuration does not exist, the model is neither a
            language model nor a classifier, or it has no such dim or takes fewer tokens.
    """
    config = _configuration(source)
    build = _class(config, source)
    # Token ids do not affect shapes, and a configuration may leave them out.
    wanted = ["decoder_start_token_id"] if config.is_encoder_decoder else []
    wanted += ["pad_token_id"] if build.__name__.endswith(_A_LABEL_EACH) else []
    for name in wanted:
        if getattr(config, name, None) is None:
            setattr(config, name, 0)
    try:
        with torch.device("meta"):
            module: nn.Module = build._from_config(config, dtype=torch.float32)
    except Exception as error:
        raise UsageError(
            f"{HUB}{source}: transformers cannot build a {build.__name__} from it: {_first_line(error)}"
        ) from error
    for part in module.modules():
        if hasattr(part, "warn_if_padding_and_no_attention_mask"):  # it reads the tokens
            setattr(part, "warn_if_padding_and_no_attention_mask", lambda *_: None)  # noqa: B010
    batch = dims.get(BATCH, _EXAMPLE_BATCH)
    if module.main_input_name not in _DIMS:
        raise UsageError(_neither(source, build.__name__))
    inputs = _inputs(module, config, batch, dims)
    return {
        "module": module.train(),
        "example_inputs": {**inputs, "labels": _labels(build.__name__, config, inputs, source)},
        "dynamic_batch": BATCH not in dims,
        "name": build.__name__,
    }


def name_of(source: str) -> str:
    """Return the model's name for use in files, from `meta-llama/Llama-3.2-1B` or `llama/config.json`."""
    path = Path(source.removeprefix(HUB))
    return (path.resolve().parent.name if path.suffix == ".json" else path.name) or "model"


def _transformers() -> Any:
    """Import transformers by name: a type checker reads all models behind an import statement."""
    return import_module("transformers")


def _configuration(source: str) -> Any:
    try:
        transformers = _transformers()
    except ModuleNotFoundError as error:
        raise UsageError(
            f"{HUB}{source} needs transformers: pip install 'onnx-planner[torch]' transformers"
        ) from error
    known = transformers.models.auto.configuration_auto.CONFIG_MAPPING
    if source in known and not os.path.exists(source):
        return transformers.AutoConfig.for_model(source)
    try:
        return transformers.AutoConfig.from_pretrained(source, local_files_only=True)
    except Exception as error:  # transformers' own checks raise many types
        raise UsageError(
            f"{HUB}{source}: no configuration: {_first_line(error)}. Give a config.json or its folder, "
            f"a kind of model ({HUB}gpt2, {HUB}llama), or a model in the Hub's local cache"
        ) from error


def _class(config: Any, source: str) -> Any:
    """Find the model's class: the configuration's own, or the first that trains such a model."""
    transformers = _transformers()
    tasks = _OF_TWO_PARTS if config.is_encoder_decoder else _TASKS
    names = [*(config.architectures or ())]
    found = [getattr(transformers, name, None) for name in names] or [
        getattr(transformers, task)._model_mapping.get(type(config), None) for task in tasks
    ]
    several = any(hasattr(config, name) for name in ("vision_config", "audio_config"))
    for build in () if several else found:
        if build is not None and build.__name__.endswith((*_A_LABEL_EACH, *_A_LABEL_A_TOKEN)):
            return build
    raise UsageError(_neither(source, ", ".join(names) or type(config).__name__))


def _inputs(
    module: Any, config: Any, batch: int, dims: Mapping[str, int]
) -> dict[str, torch.Tensor]:
    """Make tokens or images on the meta device: shapes without data."""
    main = module.main_input_name
    if other := [name for name in dims if name not in _DIMS[main]]:
        has = " and ".join(_DIMS[main])
        raise UsageError(f"{type(module).__name__} has no dim {other[0]!r}; it has {has}")
    if main == "pixel_values":
        size, channels = config.image_size, getattr(config, "num_channels", 3)
        height, width = size if isinstance(size, list | tuple) else (size, size)
        return {main: torch.empty(batch, channels, height, width, device="meta")}
    most = getattr(config, "max_position_embeddings", None)
    seq = dims.get(SEQ, min(MOST_SEQ, most or MOST_SEQ))
    if most is not None and seq > most:
        raise UsageError(f"--dim {SEQ}={seq}: the model takes {most} tokens at most")
    return {"input_ids": torch.empty(batch, seq, dtype=torch.int64, device="meta")}


def _labels(
    name: str, config: Any, inputs: Mapping[str, torch.Tensor], source: str
) -> torch.Tensor:
    """Make the labels that the transformers loss takes, by `problem_type` and `num_labels`."""
    first = next(iter(inputs.values()))
    if name.endswith(_A_LABEL_EACH):
        count, problem = config.num_labels, config.problem_type
        if problem is None and count == 1:
            problem = "regression"
        if problem not in ("regression", "multi_label_classification"):
            return torch.empty(first.shape[0], dtype=torch.int64, device="meta")
        is_flat = count == 1 and problem == "regression"
        return torch.empty(first.shape[0], *([] if is_flat else [count]), device="meta")
    if "input_ids" not in inputs:
        raise UsageError(_neither(source, name))
    return torch.empty(first.shape, dtype=torch.int64, device="meta")


def _first_line(error: Exception) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__


def _neither(source: str, name: str) -> str:
    return (
        f"{HUB}{source}: {name} has inputs that planner does not know (it knows language models "
        "and classifiers); write its step in Python: planner export train.py:step"
    )

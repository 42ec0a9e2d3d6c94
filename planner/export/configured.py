"""The training step of a model of transformers from its configuration alone: no weights, no network.

`hf:CONFIG` names a config.json or the folder that holds it, a kind of model (`hf:gpt2`, in the sizes that
its class has by default), or a model whose configuration is in the local cache of the Hub.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from planner.errors import UsageError
from planner.request.asking import HUB

BATCH, SEQ = "batch", "seq"
MOST_SEQ = 1024
"""Tokens of a sequence where `--dim seq` says nothing, and the model takes as many."""

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
        source: what follows `hf:`.
        dims: `batch`, which stays symbolic where it is not given; of text, `seq` (by default as many
            tokens as the model takes, 1,024 at most).

    Returns:
        Arguments of `planner.export.training.export_training_graph`.

    Raises:
        UsageError: transformers is missing, there is no such configuration, the model is neither a
            language model nor a classifier, or it has no such dim or takes fewer tokens.
    """
    config = _configuration(source)
    build = _class(config, source)
    with torch.device("meta"):
        module: nn.Module = build._from_config(config, dtype=torch.float32)
    batch = dims.get(BATCH, _EXAMPLE_BATCH)
    if config.is_encoder_decoder and getattr(config, "decoder_start_token_id", None) is None:
        config.decoder_start_token_id = (
            0  # before the shifted labels; a configuration may leave it out
        )
    if module.main_input_name not in _DIMS:
        raise UsageError(_neither(source, build.__name__))
    inputs = _inputs(module, config, batch, dims)
    return {
        "module": module.train(),
        "example_inputs": {**inputs, "labels": _labels(build.__name__, inputs, source)},
        "dynamic_batch": BATCH not in dims,
        "name": build.__name__,
    }


def name_of(source: str) -> str:
    """The model's name in files: of `meta-llama/Llama-3.2-1B` or `llama/config.json`."""
    path = Path(source.removeprefix(HUB))
    return (path.resolve().parent.name if path.suffix == ".json" else path.name) or "model"


def _configuration(source: str) -> Any:
    try:
        import transformers
    except ModuleNotFoundError as error:
        raise UsageError(
            f"{HUB}{source} needs transformers: pip install 'onnx-planner[torch]' transformers"
        ) from error
    known = transformers.models.auto.configuration_auto.CONFIG_MAPPING
    if source in known and not os.path.exists(source):
        return transformers.AutoConfig.for_model(source)
    try:
        return transformers.AutoConfig.from_pretrained(source, local_files_only=True)
    except (OSError, ValueError, KeyError) as error:
        raise UsageError(
            f"{HUB}{source}: no configuration: {str(error).strip().splitlines()[0]}. Give a config.json "
            f"or its folder, a kind of model ({HUB}gpt2, {HUB}llama), or a model in the Hub's local cache"
        ) from error


def _class(config: Any, source: str) -> Any:
    """The model's class: as the configuration names it, or the first that trains such a model."""
    import transformers

    named = [getattr(transformers, name, None) for name in config.architectures or ()]
    tasks = _OF_TWO_PARTS if config.is_encoder_decoder else _TASKS
    mapped = [getattr(transformers, task)._model_mapping.get(type(config), None) for task in tasks]
    several = any(hasattr(config, name) for name in ("vision_config", "audio_config"))
    for found in () if several else (*named, *mapped):
        if found is not None and found.__name__.endswith((*_A_LABEL_EACH, *_A_LABEL_A_TOKEN)):
            return found
    raise UsageError(_neither(source, type(config).__name__))


def _inputs(
    module: Any, config: Any, batch: int, dims: Mapping[str, int]
) -> dict[str, torch.Tensor]:
    """Tokens or images, as shapes alone."""
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


def _labels(name: str, inputs: Mapping[str, torch.Tensor], source: str) -> torch.Tensor:
    first = next(iter(inputs.values()))
    if name.endswith(_A_LABEL_EACH):
        return torch.empty(first.shape[0], dtype=torch.int64, device="meta")
    if "input_ids" not in inputs:
        raise UsageError(_neither(source, name))
    return torch.empty(first.shape, dtype=torch.int64, device="meta")


def _neither(source: str, name: str) -> str:
    return (
        f"{HUB}{source}: {name} is no language model or classifier whose inputs planner knows; give its "
        "step in Python: planner export train.py:step"
    )

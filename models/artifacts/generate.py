"""Artifacts of a forward model: `artifacts.generate_artifacts`, without PyTorch."""

from __future__ import annotations

import sys
import types
from pathlib import Path
from typing import Any

import onnx

from models.artifacts.nets import Net

FILES = ("training_model.onnx", "eval_model.onnx", "optimizer_model.onnx", "checkpoint")


def import_training() -> Any:
    """Import `onnxruntime.training`, without its only part that needs PyTorch.

    `onnxruntime.training.optim` wraps PyTorch optimizers for ORTModule; nothing else imports torch.
    """
    sys.modules.setdefault(
        "onnxruntime.training.optim", types.ModuleType("onnxruntime.training.optim")
    )
    import onnxruntime.training

    return onnxruntime.training


def generate(net: Net, folder: Path, loss: str = "CrossEntropyLoss") -> None:
    """Write the four artifacts of `net`, with AdamW, into `folder`.

    Args:
        loss: a member of `artifacts.LossType`.
    """
    artifacts = import_training().artifacts
    folder.mkdir(parents=True, exist_ok=True)
    frozen = [i.name for i in net.model.graph.initializer if i.name not in net.parameters]
    artifacts.generate_artifacts(
        net.model,
        requires_grad=list(net.parameters),
        frozen_params=[name for name in frozen if "running" in name],
        loss=artifacts.LossType[loss],
        optimizer=artifacts.OptimType.AdamW,
        artifact_directory=folder,
    )
    _fix_eval(folder / "eval_model.onnx")


def _fix_eval(path: Path) -> None:
    """Put the eval model's batch normalizations into inference form, as exporters write them."""
    model = onnx.load(path)
    for node in model.graph.node:
        if node.op_type == "BatchNormalization":
            del node.output[1:]
            for attribute in node.attribute:
                if attribute.name == "training_mode":
                    attribute.i = 0
    onnx.save(model, path)

"""Sohoni et al. 2019 (arXiv:1904.10631): WideResNet-28-2 on CIFAR-10, batch 100, beside what planner
reaches with exact levers and with lossy ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from models.nets import WideResNet
from reports.literature.autograd import saved_bytes
from reports.literature.networks import Way, baseline, built, least

PUBLISHED_BYTES = 404_800_000
STEPS_BYTES = (42_600_000, 12_200_000)
BATCH, MICRO_BATCH = 100, 10
LIMIT_S = 12.0

WAYS = (
    Way(name="recompute"),
    Way(name="recompute, swaps, residence", swap=True, resident=True),
    Way(name="bf16 saved tensors alone", recompute=False, in_half=True),
    Way(name="recompute, bf16 saved tensors", in_half=True),
)


def figures(folder: Path) -> dict[str, Any]:
    """Return baseline, autograd's saved bytes and least peaks, at the batch and a tenth of it."""
    torch.manual_seed(0)
    module = WideResNet()
    images, labels = torch.randn(BATCH, 3, 32, 32), torch.zeros(BATCH, dtype=torch.int64)
    whole = built("wrn28-2", folder, "--optimizer", "momentum")
    tenth = built("wrn28-2", folder, "--optimizer", "momentum", "--batch", str(MICRO_BATCH))
    return {
        "published_bytes": PUBLISHED_BYTES,
        "steps_bytes": STEPS_BYTES,
        "parameter_bytes": 4 * sum(p.numel() for p in module.parameters()),
        "autograd_bytes": saved_bytes(module, images, labels),
        "baseline": baseline(whole),
        "least": {way.name: least(whole, way, LIMIT_S) for way in WAYS},
        "micro": {
            "batch": MICRO_BATCH,
            "baseline": baseline(tenth),
            "least": {way.name: least(tenth, way, LIMIT_S) for way in WAYS[:2]},
        },
    }


def translator(folder: Path) -> dict[str, Any]:
    """Return the Transformer's baseline."""
    path = built("translator", folder, "--optimizer", "adamw")
    return {"baseline": baseline(path)}

"""The networks that are compared, drawn from recipes: everybody gets the same parameters and data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from models.nets.transformer import Attention
from models.nets.unet import UNet
from models.recipes import RECIPES
from planner.export.initial import initial_specs
from planner.export.inputs import draw_inputs


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """A recipe of `models.recipes`, with its size.

    Attributes:
        fused: attention is PyTorch's `scaled_dot_product_attention`, one operator, which keeps no scores.
    """

    title: str
    recipe: str
    sizes: Mapping[str, int] = field(default_factory=dict)
    fused: bool = False


_GPT = {"batch": 4, "seq": 256, "width": 384, "layers": 8, "heads": 6, "vocabulary": 8192}

NETWORKS: Mapping[str, Network] = {
    "gpt": Network(title="GPT, 8 layers of 384, 4×256 tokens", recipe="gpt2", sizes=_GPT),
    "gpt-sdpa": Network(
        title="the same GPT, attention as one operator (SDPA)", recipe="gpt2", sizes=_GPT, fused=True
    ),
    "bert": Network(
        title="BERT-like, 6 layers of 512, 16×128 tokens",
        recipe="bert",
        sizes={"batch": 16, "seq": 128, "width": 512, "layers": 6, "heads": 8, "vocabulary": 8192},
    ),
    "llama": Network(title="Llama-like, 16 layers of 640, 2×256 tokens", recipe="llama"),
    "resnet50": Network(
        title="ResNet-50, 16×3×128×128", recipe="resnet50", sizes={"batch": 16, "image_size": 128}
    ),
    "unet": Network(
        title="U-Net, width 32, 2×3×256×256", recipe="unet",
        sizes={"batch": 2, "image_size": 256, "width": 32},
    ),
}  # fmt: skip

_GPT_SMALL = {"batch": 4, "seq": 512, "width": 768, "layers": 12, "heads": 12, "vocabulary": 50257}

GPU_NETWORKS: Mapping[str, Network] = {
    "gpt2": Network(title="GPT-2 small, 4×512 tokens", recipe="gpt2", sizes=_GPT_SMALL),
    "gpt2-sdpa": Network(
        title="the same GPT-2, attention as one operator (SDPA)", recipe="gpt2", sizes=_GPT_SMALL,
        fused=True,
    ),
    "bert": Network(
        title="BERT-base, 32×128 tokens", recipe="bert",
        sizes={**_GPT_SMALL, "batch": 32, "seq": 128, "vocabulary": 30522},
    ),
    "resnet50": Network(
        title="ResNet-50, 32×3×224×224", recipe="resnet50", sizes={"batch": 32, "image_size": 224}
    ),
}  # fmt: skip
"""Larger networks: a step of the others is too short for a GPU."""

TINY = Network(
    title="a small GPT",
    recipe="gpt2",
    sizes={"batch": 8, "seq": 32, "width": 64, "layers": 3, "heads": 4, "vocabulary": 1024},
)
"""Networks for tests: a step takes milliseconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnStep:
    """A training step with values: `loss(module(input), target)`.

    Attributes:
        names: of the input and the target, as the exported graph calls them.
    """

    module: nn.Module
    input: Tensor
    target: Tensor
    names: tuple[str, str]
    loss: Callable[[Tensor, Tensor], Tensor]

    def forward(self) -> Tensor:
        """Compute the loss."""
        return self.loss(self.module(self.input), self.target)


def drawn(network: Network, device: str = "cpu") -> DrawnStep:
    """Build the step on a PyTorch device, with parameters, buffers and data drawn by recipe."""
    recipe = RECIPES[network.recipe]
    step = recipe.make(recipe.sized(**network.sizes))
    module = step.module.train()
    values: dict[str, Any] = {
        name: torch.from_numpy(spec.draw(name)) for name, spec in initial_specs(module).items()
    }
    module.load_state_dict(values, strict=False)  # tied weights go by the first of their names
    if network.fused:
        for part in module.modules():
            if isinstance(part, Attention):
                part.fused = True
    (name, given), (target_name, target) = draw_inputs(step.inputs).items()
    return DrawnStep(
        module=module.to(device),
        input=torch.from_numpy(given).to(device),
        target=torch.from_numpy(target).to(device),
        names=(name, target_name),
        loss=step.loss,
    )


def blocks(module: nn.Module) -> list[nn.Module]:
    """Return the usual units of checkpointing: transformer or residual blocks, double convolutions."""
    if isinstance(module, UNet):
        return [*module.down, module.middle, *module.merge]
    return list(module.get_submodule("blocks").children())

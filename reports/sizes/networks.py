"""The networks: published configurations, built on the meta device, where weights take no memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

Inputs = dict[str, Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """One network.

    Attributes:
        title: what it is called, and who says so.
        sample: what one sample of a batch is.
        config, model: names of transformers' classes.
        sizes: of the configuration; the rest is transformers' default.
        length: tokens of a sample; 0 for pictures.
    """

    title: str
    sample: str
    config: str
    model: str
    sizes: Mapping[str, Any] = field(default_factory=dict)
    length: int = 0

    def step(self, batch: int) -> tuple[nn.Module, Inputs]:
        """Return the module and the inputs of a step with labels, without values in memory."""
        import transformers

        config = getattr(transformers, self.config)(**self.sizes)
        with torch.device("meta"):
            module = getattr(transformers, self.model)(config)
            if self.length:
                ids = torch.empty(batch, self.length, dtype=torch.int64)
                return module, {"input_ids": ids, "labels": ids.clone()}
            side = config.image_size
            labels = torch.empty(batch, dtype=torch.int64)
            return module, {"pixel_values": torch.empty(batch, 3, side, side), "labels": labels}


def _llama(title: str, **sizes: int) -> Network:
    """Return a Llama of 32 layers of 4,096."""
    return Network(
        title=title,
        sample="2,048 tokens",
        config="LlamaConfig",
        model="LlamaForCausalLM",
        sizes={"hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, **sizes},
        length=2048,
    )


_OFF: Mapping[str, Any] = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}

NETWORKS: Mapping[str, Network] = {
    "llama-7b": _llama(
        "Llama 7B (Touvron et al. 2023, Table 2; vocabulary and feed-forward as released)",
        intermediate_size=11008,
        vocab_size=32000,
        max_position_embeddings=4096,
    ),
    "llama-3-8b": _llama(
        "Llama 3 8B (Grattafiori et al. 2024, Table 3: 8 heads of keys and values)",
        num_key_value_heads=8,
        intermediate_size=14336,
        vocab_size=128256,
        max_position_embeddings=8192,
    ),
    "gpt2-xl": Network(
        title="GPT-2 XL (Radford et al. 2019, Table 2: 48 layers of 1,600), without dropout",
        sample="1,024 tokens",
        config="GPT2Config",
        model="GPT2LMHeadModel",
        sizes={"n_embd": 1600, "n_layer": 48, "n_head": 25, **_OFF},
        length=1024,
    ),
    "vit-h": Network(
        title="ViT-H/14 (Dosovitskiy et al. 2020, Table 1: 32 layers of 1,280), without dropout",
        sample="a picture of 224 x 224",
        config="ViTConfig",
        model="ViTForImageClassification",
        sizes={
            "hidden_size": 1280,
            "num_hidden_layers": 32,
            "num_attention_heads": 16,
            "intermediate_size": 5120,
            "patch_size": 14,
            "num_labels": 1000,
        },
    ),
}

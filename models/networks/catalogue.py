"""Networks from the real module code of torchvision, timm, transformers and diffusers, at small sizes.

Each network is a function without arguments that returns a step: module, inputs, loss and targets, as
`export_training_graph` takes them. Networks of packages that are not installed are left out, and the
packages named.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

CLASSES = 10


@dataclass(frozen=True)
class Step:
    """One training step; `inputs` in order or by keyword."""

    module: nn.Module
    inputs: tuple[Tensor, ...] | dict[str, Any]
    loss: Callable[..., Tensor] | None = F.cross_entropy
    targets: tuple[Tensor, ...] = field(default_factory=lambda: (_labels(),))


Make = Callable[[], Step]


def catalogue() -> tuple[dict[str, Make], list[str]]:
    """Return the networks by name, and the packages that are not installed."""
    found: dict[str, Make] = {}
    missing: list[str] = []
    for package, part in (
        ("torchvision", _torchvision),
        ("timm", _timm),
        ("transformers", _transformers),
        ("diffusers", _diffusers),
    ):
        if importlib.util.find_spec(package) is None:
            missing.append(package)
        else:
            found |= part()
    from models.networks.equations import GENERATED_AND_SOLVED
    from models.networks.layers import LAYERS
    from models.networks.losses import LOSSES
    from models.networks.more import more
    from models.networks.own import OWN
    from models.networks.unseen import unseen
    from models.networks.written import SEQUENCES_AND_GRAPHS

    by_hand = SEQUENCES_AND_GRAPHS | GENERATED_AND_SOLVED | LAYERS | LOSSES
    return found | OWN | unseen() | by_hand | more(), missing


def _labels(batch: int = 2, classes: int = CLASSES) -> Tensor:
    return torch.randint(0, classes, (batch,))


def images(size: int, batch: int = 2) -> tuple[Tensor]:
    """Draw a batch of pictures."""
    return (torch.randn(batch, 3, size, size),)


# -- torchvision -------------------------------------------------------------------------------

_VISION = {
    "alexnet": 96, "convnext_tiny": 64, "densenet121": 64, "efficientnet_b0": 64,
    "efficientnet_v2_s": 64, "mnasnet0_5": 64, "mobilenet_v2": 64, "mobilenet_v3_small": 64,
    "regnet_y_400mf": 64, "resnet18": 64, "resnet50": 64, "resnext50_32x4d": 64,
    "shufflenet_v2_x0_5": 64, "squeezenet1_1": 64, "swin_t": 64, "swin_v2_t": 64, "vgg11": 64,
    "vgg11_bn": 64, "vit_b_16": 32, "wide_resnet50_2": 64,
}  # fmt: skip


def _torchvision() -> dict[str, Make]:
    models = load_torchvision().models

    def vision(name: str, size: int) -> Make:
        more = {"image_size": size} if name.startswith("vit") else {}
        return lambda: Step(getattr(models, name)(num_classes=CLASSES, **more), images(size))

    def google() -> Step:
        module = models.googlenet(num_classes=CLASSES, init_weights=False)

        def loss(out: Any, label: Tensor) -> Tensor:
            aside = F.cross_entropy(out.aux_logits1, label)
            return F.cross_entropy(out.logits, label) + 0.3 * aside

        return Step(module, images(64), loss)

    def segmentation(name: str) -> Make:
        def make() -> Step:
            build = getattr(models.segmentation, name)
            module = build(weights=None, weights_backbone=None, num_classes=5)
            pixels = torch.randint(0, 5, (2, 64, 64))
            return Step(
                module, images(64), lambda out, y: F.cross_entropy(out["out"], y), (pixels,)
            )

        return make

    found = {f"torchvision {name}": vision(name, size) for name, size in _VISION.items()}
    found["torchvision googlenet"] = google
    for name in ("deeplabv3_mobilenet_v3_large", "fcn_resnet50", "lraspp_mobilenet_v3_large"):
        found[f"torchvision {name}"] = segmentation(name)
    return found


def load_torchvision() -> Any:
    """Import torchvision even if its compiled operators do not load with this build of PyTorch: they are
    for detection, and no network here calls one."""
    while True:
        try:
            import torchvision  # pyright: ignore[reportMissingImports]
        except RuntimeError as error:
            words = str(error).split()
            name = next((word for word in words if word.startswith("torchvision::")), None)
            if name is None:
                raise
            library = torch.library.Library("torchvision", "FRAGMENT")
            library.define(f"{name.partition('::')[2]}(Tensor x) -> Tensor")
            _kept.append(library)
            for module in [m for m in sys.modules if m.partition(".")[0] == "torchvision"]:
                del sys.modules[module]
        else:
            return torchvision


_kept: list[Any] = []  # the operators live as long as the library object


# -- timm --------------------------------------------------------------------------------------

_TIMM: Mapping[str, int] = {
    "beit_base_patch16_224": -64, "cait_xxs24_224": -64, "convmixer_768_32": 64,
    "convnextv2_atto": 64, "cspdarknet53": 64, "deit_tiny_patch16_224": -64, "dla34": 64, "dpn68": 64,
    "edgenext_xx_small": 64, "efficientnet_lite0": 64, "ese_vovnet19b_dw": 64, "fastvit_t8": 64,
    "gcresnet33ts": 64, "ghostnet_100": 64, "hrnet_w18_small": 64, "inception_v3": 128,
    "legacy_seresnet18": 64, "levit_128s": 224, "mixer_s32_224": -64, "mobilenetv4_conv_small": 64,
    "mobilevit_xxs": 64, "nfnet_f0": 64, "poolformer_s12": 64, "pvt_v2_b0": 64, "repvgg_a0": 64,
    "res2net50_14w_8s": 64, "resmlp_12_224": -64, "resnest14d": 64, "rexnet_100": 64,
    "tresnet_m": 64, "twins_svt_small": -64, "visformer_tiny": -64, "vit_tiny_patch16_224": -64,
    "xception41": 64, "xcit_nano_12_p16_224": -64,
}  # fmt: skip
"""Picture sizes; the network also gets the absolute value of a negative size as an argument."""


def _timm() -> dict[str, Make]:
    load_torchvision()
    import timm  # pyright: ignore[reportMissingImports]

    def make(name: str, size: int) -> Make:
        more = {"img_size": -size} if size < 0 else {}
        return lambda: Step(timm.create_model(name, num_classes=CLASSES, **more), images(abs(size)))

    return {f"timm {name}": make(name, size) for name, size in _TIMM.items()}


# -- transformers ------------------------------------------------------------------------------

_BERT = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64,
    "vocab_size": 100,
}  # fmt: skip
_GQA = {**_BERT, "num_key_value_heads": 2}
_SHORT = {**_BERT, "max_position_embeddings": 64}
_SEQ2SEQ = {
    "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "vocab_size": 100,
    "decoder_start_token_id": 2, "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2,
}  # fmt: skip
_VIT = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64,
    "image_size": 32, "patch_size": 8,
}  # fmt: skip
_GPT = {"n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 100, "n_positions": 64}

_LANGUAGE: Mapping[str, tuple[str, dict[str, Any]]] = {
    "AlbertForMaskedLM": ("AlbertConfig", {**_SHORT, "embedding_size": 16}),
    "BartForConditionalGeneration": ("BartConfig", {**_SEQ2SEQ, "max_position_embeddings": 64}),
    "BertForMaskedLM": ("BertConfig", _SHORT),
    "BloomForCausalLM": (
        "BloomConfig",
        {"hidden_size": 32, "n_layer": 2, "n_head": 4, "vocab_size": 100},
    ),
    "CohereForCausalLM": ("CohereConfig", _GQA),
    "FalconForCausalLM": (
        "FalconConfig",
        {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 100},
    ),
    "GPT2LMHeadModel": ("GPT2Config", _GPT),
    "GPTJForCausalLM": ("GPTJConfig", {**_GPT, "rotary_dim": 4}),
    "GPTNeoXForCausalLM": ("GPTNeoXConfig", _SHORT),
    "GemmaForCausalLM": ("GemmaConfig", {**_GQA, "head_dim": 8}),
    "LlamaForCausalLM": ("LlamaConfig", _GQA),
    "MPNetForMaskedLM": ("MPNetConfig", _SHORT),
    "MambaForCausalLM": (
        "MambaConfig",
        {"hidden_size": 32, "num_hidden_layers": 2, "vocab_size": 100, "state_size": 8},
    ),
    "MistralForCausalLM": ("MistralConfig", _GQA),
    "ModernBertForMaskedLM": ("ModernBertConfig", {**_BERT, "pad_token_id": 0}),
    "OPTForCausalLM": (
        "OPTConfig",
        {
            "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "ffn_dim": 64,
            "vocab_size": 100, "max_position_embeddings": 64, "word_embed_proj_dim": 32,
        },
    ),
    "Olmo2ForCausalLM": ("Olmo2Config", _GQA),
    "Phi3ForCausalLM": ("Phi3Config", {**_GQA, "pad_token_id": 0}),
    "Qwen2ForCausalLM": ("Qwen2Config", _GQA),
    "Qwen3ForCausalLM": ("Qwen3Config", {**_GQA, "head_dim": 8}),
    "RobertaForMaskedLM": ("RobertaConfig", _SHORT),
    "RwkvForCausalLM": (
        "RwkvConfig",
        {"hidden_size": 32, "num_hidden_layers": 2, "vocab_size": 100, "attention_hidden_size": 32},
    ),
    "T5ForConditionalGeneration": (
        "T5Config",
        {
            "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4, "vocab_size": 100,
            "decoder_start_token_id": 0, "pad_token_id": 0,
        },
    ),
    "XLNetLMHeadModel": (
        "XLNetConfig",
        {"d_model": 32, "n_layer": 2, "n_head": 4, "d_inner": 64, "vocab_size": 100},
    ),
    "MixtralForCausalLM": ("MixtralConfig", {**_GQA, "num_local_experts": 4}),
    "LongformerForMaskedLM": ("LongformerConfig", {**_SHORT, "attention_window": [8, 8]}),
}  # fmt: skip

_SENTENCES: Mapping[str, tuple[str, dict[str, Any]]] = {
    "ConvBertForSequenceClassification": ("ConvBertConfig", {**_SHORT, "embedding_size": 32}),
    "DebertaV2ForSequenceClassification": (
        "DebertaV2Config",
        {
            **_SHORT, "relative_attention": True, "pos_att_type": ["p2c", "c2p"],
            "position_buckets": 8, "norm_rel_ebd": "layer_norm", "share_att_key": True,
        },
    ),
    "DistilBertForSequenceClassification": (
        "DistilBertConfig",
        {
            "dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 64, "vocab_size": 100,
            "max_position_embeddings": 64,
        },
    ),
    "ElectraForSequenceClassification": ("ElectraConfig", {**_SHORT, "embedding_size": 16}),
}  # fmt: skip

_PICTURES: Mapping[str, tuple[str, dict[str, Any]]] = {
    "Dinov2ForImageClassification": (
        "Dinov2Config",
        {k: v for k, v in _VIT.items() if k != "intermediate_size"} | {"mlp_ratio": 2},
    ),
    "SiglipForImageClassification": (
        "SiglipConfig",
        {"text_config": _BERT, "vision_config": _VIT},
    ),
    "ViTForImageClassification": ("ViTConfig", _VIT),
}


def _transformers() -> dict[str, Make]:
    if importlib.util.find_spec("torchvision") is not None:
        load_torchvision()  # transformers imports it where it is installed
    import transformers

    transformers.logging.set_verbosity_error()

    def build(name: str, config: str, options: Mapping[str, Any]) -> nn.Module:
        return getattr(transformers, name)(getattr(transformers, config)(**options))

    def tokens() -> Tensor:
        return torch.randint(3, 100, (2, 16))

    def make(name: str, config: str, options: dict[str, Any], kind: str) -> Make:
        def step() -> Step:
            labels = tokens() if kind == "language" else torch.randint(0, 2, (2,))
            if kind == "pictures":
                inputs = {"pixel_values": images(32)[0], "labels": labels}
            else:
                inputs = {"input_ids": tokens(), "labels": labels}
            return Step(build(name, config, options), inputs, None, ())

        return step

    def clip() -> Step:
        text = {**_SHORT, "eos_token_id": 2, "bos_token_id": 1, "pad_token_id": 0}
        options = {"text_config": text, "vision_config": _VIT, "projection_dim": 16}
        inputs = {"input_ids": tokens(), "pixel_values": images(32)[0], "return_loss": True}
        return Step(build("CLIPModel", "CLIPConfig", options), inputs, None, ())

    def segformer() -> Step:
        options = {
            "hidden_sizes": [8, 16, 32, 32], "depths": [1, 1, 1, 1], "decoder_hidden_size": 16,
            "num_attention_heads": [1, 2, 4, 4], "num_labels": 5,
        }  # fmt: skip
        inputs = {"pixel_values": images(64)[0], "labels": torch.randint(0, 5, (2, 64, 64))}
        name = "SegformerForSemanticSegmentation"
        return Step(build(name, "SegformerConfig", options), inputs, None, ())

    def whisper() -> Step:
        more = {"num_mel_bins": 16, "max_source_positions": 32, "max_target_positions": 32}
        inputs = {"input_features": torch.randn(2, 16, 64), "labels": tokens()[:, :8]}
        name = "WhisperForConditionalGeneration"
        return Step(build(name, "WhisperConfig", {**_SEQ2SEQ, **more}), inputs, None, ())

    def speech() -> Step:
        more = {
            "conv_dim": (16, 16), "conv_stride": (5, 2), "conv_kernel": (10, 3),
            "num_feat_extract_layers": 2, "num_conv_pos_embeddings": 16,
            "num_conv_pos_embedding_groups": 4, "mask_time_prob": 0.0, "layerdrop": 0.0,
        }  # fmt: skip
        inputs = {"input_values": torch.randn(2, 400), "labels": torch.randint(0, 2, (2,))}
        name = "Wav2Vec2ForSequenceClassification"
        return Step(build(name, "Wav2Vec2Config", {**_BERT, **more}), inputs, None, ())

    found: dict[str, Make] = {
        "transformers CLIPModel": clip,
        "transformers SegformerForSemanticSegmentation": segformer,
        "transformers WhisperForConditionalGeneration": whisper,
        "transformers Wav2Vec2ForSequenceClassification": speech,
    }
    for kind, rows in (
        ("language", _LANGUAGE),
        ("sentences", _SENTENCES),
        ("pictures", _PICTURES),
    ):
        for name, (config, options) in rows.items():
            found[f"transformers {name}"] = make(name, config, options, kind)
    return found


# -- diffusers ---------------------------------------------------------------------------------


def _diffusers() -> dict[str, Make]:
    import diffusers  # pyright: ignore[reportMissingImports]

    def denoise(name: str, options: dict[str, Any], more: Callable[[], dict[str, Any]]) -> Make:
        def step() -> Step:
            channels, size = options["in_channels"], options["sample_size"]
            noisy = torch.randn(2, channels, size, size)
            first = "hidden_states" if "Transformer" in name else "sample"
            inputs = {first: noisy, "timestep": torch.randint(0, 100, (2,)), **more()}
            module = getattr(diffusers, name)(**options)
            target = (torch.randn(2, channels, size, size),)
            return Step(module, inputs, lambda out, y: F.mse_loss(out.sample, y), target)

        return step

    def autoencoder() -> Step:
        module = diffusers.AutoencoderKL(
            in_channels=3,
            out_channels=3,
            down_block_types=("DownEncoderBlock2D",) * 2,
            up_block_types=("UpDecoderBlock2D",) * 2,
            block_out_channels=(16, 32),
            layers_per_block=1,
            latent_channels=4,
            norm_num_groups=8,
        )
        inputs = {"sample": images(32)[0]}
        return Step(module, inputs, lambda out, y: F.mse_loss(out.sample, y), images(32))

    plain = {
        "sample_size": 16, "in_channels": 3, "out_channels": 3, "layers_per_block": 1,
        "block_out_channels": (32, 64), "norm_num_groups": 8,
        "down_block_types": ("DownBlock2D", "AttnDownBlock2D"),
        "up_block_types": ("AttnUpBlock2D", "UpBlock2D"),
    }  # fmt: skip
    guided = {
        "sample_size": 8, "in_channels": 4, "out_channels": 4, "layers_per_block": 1,
        "block_out_channels": (32, 64), "norm_num_groups": 8, "cross_attention_dim": 16,
        "attention_head_dim": 8, "down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D"),
        "up_block_types": ("UpBlock2D", "CrossAttnUpBlock2D"),
    }  # fmt: skip
    return {
        "diffusers AutoencoderKL": autoencoder,
        "diffusers UNet2DModel": denoise("UNet2DModel", plain, dict),
        "diffusers UNet2DConditionModel": denoise(
            "UNet2DConditionModel", guided, lambda: {"encoder_hidden_states": torch.randn(2, 6, 16)}
        ),
    }

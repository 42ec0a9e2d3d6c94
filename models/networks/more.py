"""More networks of torchvision, timm, transformers and diffusers at small sizes, as tables."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from models.networks.catalogue import Make, Step, images, load_torchvision
from models.networks.unseen import EXPERTS, PAIR, SHARED, TEXT, VISION, WORDS, built

_TIMM = {
    "pit_ti_224": 224, "coat_lite_tiny": 224, "mvitv2_tiny": 224, "tnt_s_legacy_patch16_224": 224,
    "efficientvit_b0": 64, "efficientvit_m0": 224, "efficientformerv2_s0": 224, "repvit_m0_9": 64,
    "repghostnet_050": 64, "fasternet_t0": 64, "sequencer2d_s": 224, "selecsls42": 64,
    "mixnet_s": 64, "convformer_s18": 64, "swiftformer_xs": 224, "shvit_s1": 64,
    "flexivit_small": 240, "lcnet_050": 64, "mobileone_s0": 64, "ghostnetv2_100": 64,
    "regnetz_c16": 64, "nest_tiny": 224, "bat_resnext26ts": 256, "resnetblur50": 64,
}  # fmt: skip
"""Picture sizes."""

_LANGUAGE: Mapping[str, dict[str, Any]] = {
    "BioGptForCausalLM": TEXT,
    "CodeGenForCausalLM": {
        "vocab_size": WORDS, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "rotary_dim": 4,
    },
    "Cohere2ForCausalLM": {**SHARED, "pad_token_id": 0},
    "DiffLlamaForCausalLM": SHARED,
    "Ernie4_5ForCausalLM": {**SHARED, "pad_token_id": 0},
    "GptOssForCausalLM": {
        **SHARED, "num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 8, "pad_token_id": 0,
    },
    "GraniteMoeForCausalLM": {**SHARED, "num_local_experts": 4, "num_experts_per_tok": 2},
    "HeliumForCausalLM": {**SHARED, "head_dim": 8, "pad_token_id": 0},
    "JambaForCausalLM": {
        **EXPERTS, "num_hidden_layers": 4, "attn_layer_period": 2, "attn_layer_offset": 1,
        "expert_layer_period": 2, "expert_layer_offset": 1, "mamba_d_state": 8,
        "mamba_dt_rank": 4, "use_mamba_kernels": False, "pad_token_id": 0,
    },
    "RecurrentGemmaForCausalLM": {
        **SHARED, "num_hidden_layers": 3, "lru_width": 32, "attention_window_size": 8,
        "head_dim": 8, "pad_token_id": 0,
    },
    "SmolLM3ForCausalLM": {**SHARED, "pad_token_id": 0},
    "RemBertForMaskedLM": {**TEXT, "input_embedding_size": 16, "output_embedding_size": 32},
    "MobileBertForMaskedLM": {
        **TEXT, "embedding_size": 32, "intra_bottleneck_size": 32, "true_hidden_size": 32,
    },
    "XmodForMaskedLM": {**TEXT, "default_language": "en_XX", "languages": ["en_XX"]},
    "OpenAIGPTLMHeadModel": {
        "vocab_size": WORDS, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64,
    },
    "BlenderbotSmallForConditionalGeneration": PAIR,
    "MarianMTModel": {**PAIR, "pad_token_id": 0, "decoder_start_token_id": 1},
    "PegasusXForConditionalGeneration": {**PAIR, "block_size": 8, "num_global_tokens": 4},
    "FSMTForConditionalGeneration": {
        **PAIR, "src_vocab_size": WORDS, "tgt_vocab_size": WORDS, "langs": ["en", "de"],
    },
    "LongT5ForConditionalGeneration": {
        "vocab_size": WORDS, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4,
        "decoder_start_token_id": 0, "local_radius": 4,
    },
    "ProphetNetForConditionalGeneration": {
        "vocab_size": WORDS, "hidden_size": 32, "encoder_ffn_dim": 64, "num_encoder_layers": 2,
        "num_encoder_attention_heads": 4, "decoder_ffn_dim": 64, "num_decoder_layers": 2,
        "num_decoder_attention_heads": 4, "max_position_embeddings": 64, "ngram": 2,
    },
}  # fmt: skip

_SENTENCES: Mapping[str, dict[str, Any]] = {
    "CanineForSequenceClassification": {**TEXT, "local_transformer_stride": 8, "downsampling_rate": 4},
    "YosoForSequenceClassification": {**TEXT, "use_expectation": True},
    "ErnieForSequenceClassification": TEXT,
    "OPTForSequenceClassification": {
        "vocab_size": WORDS, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
        "ffn_dim": 64, "max_position_embeddings": 64, "word_embed_proj_dim": 32,
    },
}  # fmt: skip

_STAGES = {"hidden_sizes": [8, 16, 16, 32], "depths": [1, 1, 1, 1]}
_CLIP = {**VISION, "num_frames": 4}

_PICTURES: Mapping[str, tuple[tuple[int, ...], dict[str, Any]]] = {
    "BitForImageClassification": ((3, 32, 32), {**_STAGES, "embedding_size": 8, "num_groups": 4}),
    "Dinov2WithRegistersForImageClassification": (
        (3, 32, 32),
        {k: v for k, v in VISION.items() if k != "intermediate_size"},
    ),
    "EfficientNetForImageClassification": (
        (3, 64, 64),
        {"width_coefficient": 0.25, "depth_coefficient": 0.5, "hidden_dim": 320, "image_size": 64,
         "initializer_range": 0.2},
    ),
    "IJepaForImageClassification": ((3, 32, 32), VISION),
    "MobileNetV1ForImageClassification": ((3, 32, 32), {"depth_multiplier": 0.25, "image_size": 32}),
    "MobileNetV2ForImageClassification": ((3, 32, 32), {"depth_multiplier": 0.25, "image_size": 32}),
    "MobileViTForImageClassification": (
        (3, 64, 64),
        {
            "image_size": 64, "hidden_sizes": [16, 16, 32], "num_attention_heads": 2,
            "neck_hidden_sizes": [8, 8, 16, 16, 16, 16, 32],
        },
    ),
    "PvtForImageClassification": (
        (3, 64, 64),
        {"image_size": 64, "hidden_sizes": [8, 16, 16, 32], "num_attention_heads": [1, 2, 2, 2],
         "depths": [1, 1, 1, 1]},
    ),
    "ResNetForImageClassification": ((3, 32, 32), {**_STAGES, "embedding_size": 8}),
    "TimesformerForVideoClassification": ((4, 3, 32, 32), _CLIP),
    "VideoMAEForVideoClassification": ((4, 3, 32, 32), {**_CLIP, "tubelet_size": 2}),
    "VivitForVideoClassification": ((4, 3, 32, 32), {**_CLIP, "tubelet_size": [2, 8, 8]}),
    "ASTForAudioClassification": (
        (64, 32),
        {**{k: v for k, v in VISION.items() if k != "image_size"}, "max_length": 64,
         "num_mel_bins": 32, "frequency_stride": 8, "time_stride": 8},
    ),
}  # fmt: skip


def more() -> dict[str, Make]:
    """Return the networks of the installed packages, by name."""
    found: dict[str, Make] = {}
    for package, part in (
        ("torchvision", _torchvision),
        ("timm", _timm),
        ("transformers", _transformers),
        ("diffusers", _diffusers),
    ):
        if importlib.util.find_spec(package) is not None:
            found |= {f"{package} {name}": make for name, make in part().items()}
    return found


def _timm() -> dict[str, Make]:
    import timm  # pyright: ignore[reportMissingImports]

    def plain(name: str, size: int) -> Make:
        return lambda: Step(timm.create_model(name, num_classes=10), images(size))

    return {name: plain(name, size) for name, size in _TIMM.items()}


def _torchvision() -> dict[str, Make]:
    models = load_torchvision().models

    def clip(name: str, frames: int, size: int) -> Make:
        video = (2, 3, frames, size, size)
        return lambda: Step(getattr(models.video, name)(num_classes=10), (torch.randn(video),))

    return {
        "mc3_18": clip("mc3_18", 4, 32),
        "r2plus1d_18": clip("r2plus1d_18", 4, 32),
        "maxvit_t": lambda: Step(
            models.maxvit_t(num_classes=10), images(224, 1), targets=(torch.tensor([1]),)
        ),
    }


def _transformers() -> dict[str, Make]:
    def words() -> Tensor:
        return torch.randint(3, WORDS, (2, 16))

    def step(name: str, options: Mapping[str, Any], inputs: Callable[[], dict[str, Any]]) -> Make:
        return lambda: Step(built(name, options), inputs(), None, ())

    found: dict[str, Make] = {}
    for name, options in _LANGUAGE.items():
        found[name] = step(name, options, lambda: {"input_ids": words(), "labels": words()})
    for name, options in _SENTENCES.items():
        found[name] = step(
            name, options, lambda: {"input_ids": words(), "labels": torch.randint(0, 2, (2,))}
        )
    for name, (shape, options) in _PICTURES.items():
        key = "input_values" if "Audio" in name else "pixel_values"

        def pictures(key: str = key, shape: tuple[int, ...] = shape) -> dict[str, Any]:
            return {key: torch.randn(2, *shape), "labels": torch.randint(0, 2, (2,))}

        found[name] = step(name, options, pictures)
    return found | _of_other_inputs(step, words)


def _of_other_inputs(step: Callable[..., Make], words: Callable[[], Tensor]) -> dict[str, Make]:
    series = {
        "prediction_length": 4, "context_length": 8, "lags_sequence": [1, 2], "d_model": 16,
        "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2,
        "decoder_attention_heads": 2, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32,
        "num_time_features": 1,
    }  # fmt: skip
    mixer = {
        "context_length": 32, "patch_length": 8, "patch_stride": 8, "num_input_channels": 3,
        "d_model": 16, "num_layers": 2, "prediction_length": 8,
    }  # fmt: skip

    def past() -> dict[str, Any]:
        return {
            "past_values": torch.rand(2, 10), "past_time_features": torch.rand(2, 10, 1),
            "past_observed_mask": torch.ones(2, 10), "future_values": torch.rand(2, 4),
            "future_time_features": torch.rand(2, 4, 1),
        }  # fmt: skip

    def boxes() -> dict[str, Any]:
        corner = torch.randint(0, 500, (2, 16, 2))
        labels = torch.randint(0, 2, (2, 16))
        return {"input_ids": words(), "bbox": torch.cat([corner, corner + 9], -1), "labels": labels}

    return {
        "TimeSeriesTransformerForPrediction": step("TimeSeriesTransformerForPrediction", series, past),
        "InformerForPrediction": step("InformerForPrediction", series, past),
        "PatchTSMixerForPrediction": step(
            "PatchTSMixerForPrediction", mixer,
            lambda: {"past_values": torch.randn(2, 32, 3), "future_values": torch.randn(2, 8, 3)},
        ),
        "LayoutLMForTokenClassification": step(
            "LayoutLMForTokenClassification", {**TEXT, "max_2d_position_embeddings": 512}, boxes
        ),
        "LiltForTokenClassification": step(
            "LiltForTokenClassification",
            {**TEXT, "hidden_size": 48, "max_2d_position_embeddings": 512, "channel_shrink_ratio": 2},
            boxes,
        ),
    }  # fmt: skip


def _diffusers() -> dict[str, Make]:
    import diffusers  # pyright: ignore[reportMissingImports]

    heads = {"num_attention_heads": 2, "attention_head_dim": 8, "num_layers": 2}
    noise = (2, 4, 8, 8)

    def step(name: str, options: dict[str, Any], *shape: int, **inputs: Callable[[], Any]) -> Make:
        def make() -> Step:
            given = {key: value() for key, value in inputs.items()}
            aim = (torch.randn(*shape),)
            module = getattr(diffusers, name)(**options)
            return Step(module, given, lambda out, y: F.mse_loss(out.sample, y), aim)

        return make

    def drawn(*shape: int) -> Callable[[], Tensor]:
        return lambda: torch.randn(*shape)

    def times() -> Tensor:
        return torch.randint(0, 100, (2,))

    return {
        "DiTTransformer2DModel": step(
            "DiTTransformer2DModel",
            {**heads, "in_channels": 4, "sample_size": 8, "norm_num_groups": 4,
             "num_embeds_ada_norm": 10},
            *noise, hidden_states=drawn(*noise), timestep=times,
            class_labels=lambda: torch.tensor([1, 3]),
        ),
        "PixArtTransformer2DModel": step(
            "PixArtTransformer2DModel",
            {**heads, "in_channels": 4, "out_channels": 4, "sample_size": 8, "cross_attention_dim": 16,
             "caption_channels": 12, "use_additional_conditions": False, "norm_num_groups": 4},
            *noise, hidden_states=drawn(*noise), timestep=times, encoder_hidden_states=drawn(2, 5, 12),
            added_cond_kwargs=lambda: {"resolution": None, "aspect_ratio": None},
        ),
        "SD3Transformer2DModel": step(
            "SD3Transformer2DModel",
            {**heads, "in_channels": 4, "out_channels": 4, "sample_size": 8, "joint_attention_dim": 12,
             "caption_projection_dim": 16, "pooled_projection_dim": 10, "pos_embed_max_size": 8},
            *noise, hidden_states=drawn(*noise), timestep=times, encoder_hidden_states=drawn(2, 5, 12),
            pooled_projections=drawn(2, 10),
        ),
        "FluxTransformer2DModel": step(
            "FluxTransformer2DModel",
            {**heads, "in_channels": 4, "num_single_layers": 1, "joint_attention_dim": 12,
             "pooled_projection_dim": 10, "axes_dims_rope": (2, 2, 4)},
            2, 16, 4, hidden_states=drawn(2, 16, 4), timestep=lambda: torch.rand(2),
            encoder_hidden_states=drawn(2, 5, 12), pooled_projections=drawn(2, 10),
            txt_ids=lambda: torch.zeros(5, 3), img_ids=lambda: torch.randint(0, 4, (16, 3)).float(),
        ),
        "UNet3DConditionModel": step(
            "UNet3DConditionModel",
            {"block_out_channels": (8, 16), "norm_num_groups": 4, "cross_attention_dim": 12,
             "attention_head_dim": 4, "layers_per_block": 1, "sample_size": 8,
             "down_block_types": ("CrossAttnDownBlock3D", "DownBlock3D"),
             "up_block_types": ("UpBlock3D", "CrossAttnUpBlock3D")},
            2, 4, 3, 8, 8, sample=drawn(2, 4, 3, 8, 8), timestep=times,
            encoder_hidden_states=drawn(2, 5, 12),
        ),
        "AutoencoderTiny": step(
            "AutoencoderTiny",
            {"encoder_block_out_channels": (8, 8), "decoder_block_out_channels": (8, 8),
             "num_encoder_blocks": (1, 1), "num_decoder_blocks": (1, 1)},
            2, 3, 32, 32, sample=drawn(2, 3, 32, 32),
        ),
        "VQModel": step(
            "VQModel", {"norm_num_groups": 4, "block_out_channels": (8,), "num_vq_embeddings": 16},
            2, 3, 16, 16, sample=drawn(2, 3, 16, 16),
        ),
    }  # fmt: skip

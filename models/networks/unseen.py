"""More networks, added after the exporter was finished: none of its rules was written for them.

Four of them led to changes nevertheless: sizes and bounds that are tensors (Encodec, DeBERTa), a single
random number (HuBERT), an input that the step overwrites for itself (Splinter).
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from models.networks.catalogue import Make, Step, images, load_torchvision

WORDS = 99
TEXT = {
    "vocab_size": WORDS, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
    "intermediate_size": 64, "max_position_embeddings": 64,
}  # fmt: skip
SHARED = {**TEXT, "num_key_value_heads": 2}
EXPERTS = {**SHARED, "num_experts": 4, "num_experts_per_tok": 2}
PAIR = {
    "vocab_size": WORDS, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2,
    "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64, "max_position_embeddings": 64,
}  # fmt: skip
_T5 = {
    "vocab_size": WORDS, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4,
    "decoder_start_token_id": 0,
}  # fmt: skip
VISION = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64,
    "image_size": 32, "patch_size": 8,
}  # fmt: skip
_GPT = {"vocab_size": WORDS, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}
_STAGES = {"hidden_sizes": [8, 16, 16, 32], "depths": [1, 1, 1, 1]}
_SWIN = {
    "image_size": 32, "patch_size": 4, "embed_dim": 16, "depths": [2, 1], "num_heads": [2, 2],
    "window_size": 4,
}  # fmt: skip

_LANGUAGE: Mapping[str, dict[str, Any]] = {
    "FNetForMaskedLM": TEXT,
    "Gemma2ForCausalLM": {**SHARED, "head_dim": 8},
    "PhiForCausalLM": TEXT,
    "StableLmForCausalLM": SHARED,
    "Starcoder2ForCausalLM": SHARED,
    "OlmoForCausalLM": TEXT,
    "OlmoeForCausalLM": EXPERTS,
    "Qwen2MoeForCausalLM": {
        **EXPERTS, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 32,
    },
    "Qwen3MoeForCausalLM": {**EXPERTS, "moe_intermediate_size": 32, "head_dim": 8},
    "DeepseekV3ForCausalLM": {
        **TEXT, "num_key_value_heads": 4, "n_routed_experts": 4, "num_experts_per_tok": 2,
        "moe_intermediate_size": 32, "n_group": 1, "topk_group": 1, "q_lora_rank": 16,
        "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8,
        "first_k_dense_replace": 1,
    },
    "MptForCausalLM": {
        "vocab_size": WORDS, "d_model": 32, "n_heads": 4, "n_layers": 2, "max_seq_len": 64,
    },
    "GraniteForCausalLM": SHARED,
    "GlmForCausalLM": {**SHARED, "head_dim": 8, "pad_token_id": 0},
    "PersimmonForCausalLM": TEXT,
    "NemotronForCausalLM": SHARED,
    "GPTBigCodeForCausalLM": _GPT,
    "GPTNeoForCausalLM": {
        "vocab_size": WORDS, "hidden_size": 32, "num_layers": 2, "num_heads": 4, "window_size": 8,
        "attention_types": [[["global", "local"], 1]], "max_position_embeddings": 64,
    },
    "CTRLLMHeadModel": {**_GPT, "dff": 64},
    "XGLMForCausalLM": {
        "vocab_size": WORDS, "d_model": 32, "ffn_dim": 64, "num_layers": 2, "attention_heads": 4,
        "max_position_embeddings": 64,
    },
    "Mamba2ForCausalLM": {
        **TEXT, "num_heads": 8, "head_dim": 8, "state_size": 16, "n_groups": 1, "chunk_size": 8,
    },
    "FalconMambaForCausalLM": {**TEXT, "state_size": 8},
    "EsmForMaskedLM": {
        **TEXT, "position_embedding_type": "rotary", "pad_token_id": 1, "mask_token_id": 2,
    },
    "XLMWithLMHeadModel": {
        "vocab_size": WORDS, "emb_dim": 32, "n_layers": 2, "n_heads": 4,
        "max_position_embeddings": 64,
    },
    "MBartForConditionalGeneration": PAIR,
    "PegasusForConditionalGeneration": PAIR,
    "M2M100ForConditionalGeneration": PAIR,
    "LEDForConditionalGeneration": {
        **PAIR, "max_encoder_position_embeddings": 64, "max_decoder_position_embeddings": 64,
        "attention_window": 8,
    },
    "UMT5ForConditionalGeneration": _T5,
    "SwitchTransformersForConditionalGeneration": {
        **_T5, "num_sparse_encoder_layers": 1, "num_sparse_decoder_layers": 1, "num_experts": 4,
        "expert_capacity": 8,
    },
}  # fmt: skip
"""The configurations, by class."""

_SENTENCES: Mapping[str, dict[str, Any]] = {
    "BigBirdForSequenceClassification": {**TEXT, "attention_type": "original_full"},
    "FunnelForSequenceClassification": {
        "vocab_size": WORDS, "block_sizes": [1, 1], "d_model": 32, "n_head": 4, "d_head": 8,
        "d_inner": 64,
    },
    "SqueezeBertForSequenceClassification": {**TEXT, "embedding_size": 32},
    "NystromformerForSequenceClassification": {
        **TEXT, "segment_means_seq_len": 16, "num_landmarks": 4,
    },
    "RoFormerForSequenceClassification": {**TEXT, "embedding_size": 32},
    "IBertForSequenceClassification": TEXT,
    "DebertaForSequenceClassification": {
        **TEXT, "relative_attention": True, "pos_att_type": ["c2p", "p2c"],
    },
}  # fmt: skip

_PICTURES: Mapping[str, tuple[int, dict[str, Any]]] = {
    "DeiTForImageClassification": (32, VISION),
    "BeitForImageClassification": (32, VISION),
    "ConvNextV2ForImageClassification": (32, _STAGES),
    "SwinForImageClassification": (32, _SWIN),
    "Swinv2ForImageClassification": (32, _SWIN),
    "RegNetForImageClassification": (32, {**_STAGES, "embedding_size": 8, "groups_width": 8}),
    "PoolFormerForImageClassification": (64, _STAGES),
    "LevitForImageClassification": (
        64,
        {
            "image_size": 64, "hidden_sizes": [16, 32, 32], "num_attention_heads": [2, 2, 2],
            "depths": [1, 1, 1], "key_dim": [8, 8, 8],
        },
    ),
    "FocalNetForImageClassification": (
        32,
        {
            "image_size": 32, "embed_dim": 16, "depths": [1, 1], "focal_levels": [2, 2],
            "focal_windows": [3, 3], "hidden_sizes": [16, 32],
        },
    ),
    "HieraForImageClassification": (
        64,
        {
            "image_size": [64, 64], "embed_dim": 16, "depths": [1, 1, 1, 1],
            "num_heads": [1, 2, 2, 4],
        },
    ),
}  # fmt: skip

_TORCHVISION = (
    "resnet34", "densenet169", "efficientnet_b3", "regnet_x_400mf", "mobilenet_v3_large",
    "shufflenet_v2_x1_0", "squeezenet1_0", "vgg16", "convnext_small", "mnasnet1_0",
)  # fmt: skip

_TIMM = {
    "coatnet_nano_rw_224": 224, "gmlp_s16_224": 224, "crossvit_tiny_240": 240, "convit_tiny": 224,
    "efficientformer_l1": 224, "eca_resnet33ts": 64, "lambda_resnet26t": 64, "halonet26t": 256,
    "sebotnet33ts_256": 256, "volo_d1_224": 224, "gcvit_xxtiny": 224, "inception_next_tiny": 64,
    "davit_tiny": 224, "hgnet_tiny": 64, "tinynet_e": 64, "eva02_tiny_patch14_224": 224,
    "vitamin_small_224": 224, "skresnet18": 64, "vovnet39a": 64, "focalnet_tiny_srf": 224,
    "tiny_vit_5m_224": 224, "gernet_s": 64, "cs3darknet_s": 64, "resnetv2_50": 64, "rdnet_tiny": 64,
    "starnet_s1": 64, "mambaout_femto": 64, "hiera_tiny_224": 224, "swinv2_cr_tiny_224": 224,
}  # fmt: skip


def unseen() -> dict[str, Make]:
    """Return the networks of the installed packages, by name."""
    found: dict[str, Make] = {}
    if importlib.util.find_spec("torchvision") is not None:
        found |= _torchvision()
    if importlib.util.find_spec("timm") is not None:
        found |= _timm()
    if importlib.util.find_spec("transformers") is not None:
        found |= _transformers()
    return found


def _torchvision() -> dict[str, Make]:
    models = load_torchvision().models

    def plain(name: str) -> Make:
        return lambda: Step(getattr(models, name)(num_classes=10), images(64))

    def clip() -> Step:
        video = torch.randn(2, 3, 4, 32, 32)
        return Step(models.video.r3d_18(num_classes=10), (video,))

    found: dict[str, Make] = {f"torchvision {name}": plain(name) for name in _TORCHVISION}
    return found | {"torchvision r3d_18": clip}


def _timm() -> dict[str, Make]:
    import timm  # pyright: ignore[reportMissingImports]

    def plain(name: str, size: int) -> Make:
        return lambda: Step(timm.create_model(name, num_classes=10), images(size))

    return {f"timm {name}": plain(name, size) for name, size in _TIMM.items()}


def built(name: str, options: Mapping[str, Any]) -> Any:
    """Build a model of transformers by its class, with a configuration of these options."""
    import transformers

    build = getattr(transformers, name)
    return build(build.config_class(**options))


def _transformers() -> dict[str, Make]:
    def words(rows: int = 2, count: int = 16) -> Tensor:
        return torch.randint(3, WORDS, (rows, count))

    def classes() -> Tensor:
        return torch.randint(0, 2, (2,))

    def step(
        name: str,
        options: Mapping[str, Any],
        inputs: Callable[[], dict[str, Any]],
        loss: Callable[..., Tensor] | None = None,
    ) -> Make:
        return lambda: Step(built(name, options), inputs(), loss, ())

    found: dict[str, Make] = {}
    for name, options in _LANGUAGE.items():
        found[name] = step(name, options, lambda: {"input_ids": words(), "labels": words()})
    for name, options in _SENTENCES.items():
        found[name] = step(name, options, lambda: {"input_ids": words(), "labels": classes()})
    for name, (size, options) in _PICTURES.items():

        def pictures(size: int = size) -> dict[str, Any]:
            return {"pixel_values": images(size)[0], "labels": classes()}

        found[name] = step(name, options, pictures)
    return {f"transformers {name}": made for name, made in (found | _others(step)).items()}


def _others(step: Callable[..., Make]) -> dict[str, Make]:
    """Return networks on other inputs: pictures with words, sound, series, moves."""
    sound = {
        "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "conv_dim": (16, 16),
        "intermediate_size": 64, "conv_stride": (5, 2), "conv_kernel": (10, 3), "layerdrop": 0.0,
        "num_feat_extract_layers": 2, "num_conv_pos_embeddings": 16, "apply_spec_augment": False,
        "num_conv_pos_embedding_groups": 4, "classifier_proj_size": 16,
    }  # fmt: skip
    codec = {
        "num_filters": 4, "hidden_size": 16, "num_residual_layers": 1, "codebook_size": 16,
        "upsampling_ratios": [4, 2], "num_lstm_layers": 1,
    }  # fmt: skip
    series = {
        "num_input_channels": 3, "context_length": 32, "patch_length": 8, "patch_stride": 8,
        "d_model": 32, "num_attention_heads": 4, "num_hidden_layers": 2, "ffn_dim": 64,
        "prediction_length": 8,
    }  # fmt: skip
    moves = {"state_dim": 5, "act_dim": 2, "hidden_size": 32, "n_layer": 2, "n_head": 4}
    dense = {
        **VISION, "num_hidden_layers": 4, "backbone_out_indices": [0, 1, 2, 3],
        "neck_hidden_sizes": [8, 8, 8, 8], "fusion_hidden_size": 8, "num_labels": 3,
    }  # fmt: skip
    return {
        "HubertForSequenceClassification": step(
            "HubertForSequenceClassification",
            sound,
            lambda: {"input_values": torch.randn(2, 400), "labels": torch.arange(2)},
        ),
        "Wav2Vec2ForCTC": step(
            "Wav2Vec2ForCTC",
            {**sound, "vocab_size": 20},
            lambda: {"input_values": torch.randn(2, 600), "labels": torch.randint(1, 20, (2, 5))},
        ),
        "EncodecModel": step(
            "EncodecModel",
            codec,
            lambda: {"input_values": torch.randn(2, 1, 256)},
            lambda out: F.mse_loss(out.audio_values, torch.zeros(2, 1, 256)),
        ),
        "PatchTSTForPrediction": step(
            "PatchTSTForPrediction",
            series,
            lambda: {"past_values": torch.randn(2, 32, 3), "future_values": torch.randn(2, 8, 3)},
        ),
        "DecisionTransformerModel": step(
            "DecisionTransformerModel",
            moves,
            lambda: {
                "states": torch.randn(2, 6, 5), "actions": torch.randn(2, 6, 2),
                "rewards": torch.randn(2, 6, 1), "returns_to_go": torch.randn(2, 6, 1),
                "timesteps": torch.arange(6).repeat(2, 1), "attention_mask": torch.ones(2, 6),
            },
            lambda out: out.action_preds.square().mean(),
        ),
        "DPTForSemanticSegmentation": step(
            "DPTForSemanticSegmentation",
            dense,
            lambda: {
                "pixel_values": images(32)[0], "labels": torch.randint(0, 3, (2, 32, 32)),
            },
        ),
        "SplinterForQuestionAnswering": step(
            "SplinterForQuestionAnswering",
            TEXT,
            lambda: {
                "input_ids": torch.randint(3, WORDS, (2, 16)),
                "start_positions": torch.tensor([1, 2]), "end_positions": torch.tensor([3, 4]),
            },
        ),
        "ViltForQuestionAnswering": step(
            "ViltForQuestionAnswering",
            {**TEXT, "image_size": 32, "patch_size": 8, "num_labels": 4},
            lambda: {
                "input_ids": torch.randint(3, WORDS, (2, 16)), "pixel_values": images(32)[0],
                "pixel_mask": torch.ones(2, 32, 32, dtype=torch.long), "labels": torch.rand(2, 4),
            },
        ),
    }  # fmt: skip

"""Models of transformers, from their own configurations, with random weights: nothing is downloaded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.torch.test_recompute_trust import assert_same
from tests.zoo.zoo import Case, assert_same_at_half

transformers: Any = pytest.importorskip(
    "transformers", reason="transformers is not installed: `make test-zoo` does that"
)

Inputs = Callable[[], dict[str, Any]]

RECOMPUTED = (
    "GPT2LMHeadModel", "LlamaForCausalLM", "Qwen3MoeForCausalLM", "OPTForCausalLM", "BertForMaskedLM",
    "WhisperForConditionalGeneration", "ViTForImageClassification", "SwinForImageClassification",
    "ConvNextForImageClassification", "ResNetForImageClassification", "SegformerForSemanticSegmentation", "CLIPModel",
)  # fmt: skip
"""Classes of each kind, which are trained with recomputes too."""

WORDS = 211
TEXT = {
    "vocab_size": WORDS,
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 128,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
GROUPED = TEXT | {"num_key_value_heads": 2, "head_dim": 16}
EXPERTS = GROUPED | {"num_local_experts": 4, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64}
TWO_SIDED = {
    "vocab_size": WORDS,
    "d_model": 64,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 128,
    "decoder_ffn_dim": 128,
}
IMAGE = {
    "image_size": 32,
    "patch_size": 4,
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 128,
}


def ids(rows: int = 4, columns: int = 64) -> Tensor:
    return (torch.arange(rows * columns).reshape(rows, columns) * 37 + 11) % (WORDS - 3) + 3


def waves(*shape: int) -> Tensor:
    return torch.arange(torch.Size(shape).numel()).reshape(shape).mul(0.37).sin()


def text() -> dict[str, Tensor]:
    return {"input_ids": ids(), "labels": ids()}


def pairs() -> dict[str, Tensor]:
    return {"input_ids": ids(), "labels": ids(4, 32)}


def sentences() -> dict[str, Tensor]:
    return {"input_ids": ids(), "labels": torch.tensor([0, 1, 0, 1])}


def images() -> dict[str, Tensor]:
    return {"pixel_values": waves(4, 3, 32, 32), "labels": torch.tensor([0, 1, 0, 1])}


def large_images() -> dict[str, Tensor]:
    return {"pixel_values": waves(8, 3, 64, 64), "labels": torch.tensor([0, 1] * 4)}


def maps() -> dict[str, Tensor]:
    return {"pixel_values": waves(2, 3, 64, 64), "labels": ids(2, 64 * 64).reshape(2, 64, 64) % 2}


def sound() -> dict[str, Tensor]:
    return {"input_values": waves(2, 8000), "labels": torch.tensor([0, 1])}


def spectra() -> dict[str, Tensor]:
    return {"input_features": waves(2, 80, 200), "labels": ids(2, 24)}


def captions() -> dict[str, Any]:
    return {"input_ids": ids(4, 16), "pixel_values": waves(4, 3, 32, 32), "return_loss": True}


def case(name: str, inputs: Inputs, **given: Any) -> Case:
    def model() -> Any:
        return getattr(transformers, name)(getattr(transformers, configuration(name))(**given))

    return Case(name, model, lambda model: model(**inputs()).loss)


def configuration(name: str) -> str:
    for tail in ("ForCausalLM", "ForMaskedLM", "LMHeadModel", "ForConditionalGeneration", "ForSequenceClassification"):
        name = name.removesuffix(tail)
    for tail in ("ForImageClassification", "ForSemanticSegmentation", "ForPreTraining", "ForAudioClassification"):
        name = name.removesuffix(tail)
    return name.removesuffix("Model") + "Config"


CASES = [
    case("GPT2LMHeadModel", text, vocab_size=WORDS, n_positions=128, n_embd=64, n_layer=3, n_head=4),
    case("GPTNeoXForCausalLM", text, **TEXT),
    case(
        "GPTNeoForCausalLM",
        text,
        vocab_size=WORDS,
        hidden_size=64,
        num_layers=2,
        num_heads=4,
        attention_types=[[["global", "local"], 1]],
        max_position_embeddings=128,
    ),
    case("GPTJForCausalLM", text, vocab_size=WORDS, n_positions=128, n_embd=64, n_layer=3, n_head=4, rotary_dim=8),
    case("LlamaForCausalLM", text, **GROUPED),
    case("MistralForCausalLM", text, **GROUPED, sliding_window=32),
    case("MixtralForCausalLM", text, **EXPERTS),
    case("Qwen2ForCausalLM", text, **GROUPED),
    case("Qwen3ForCausalLM", text, **GROUPED),
    case("Qwen3MoeForCausalLM", text, **EXPERTS),
    case("GemmaForCausalLM", text, **GROUPED),
    case("Gemma2ForCausalLM", text, **GROUPED),
    case("PhiForCausalLM", text, **TEXT),
    case("Phi3ForCausalLM", text, **(TEXT | {"num_key_value_heads": 2})),
    case("OlmoForCausalLM", text, **TEXT),
    case("StableLmForCausalLM", text, **(TEXT | {"num_key_value_heads": 4})),
    case(
        "OPTForCausalLM",
        text,
        vocab_size=WORDS,
        hidden_size=64,
        num_hidden_layers=3,
        num_attention_heads=4,
        ffn_dim=128,
        max_position_embeddings=128,
        word_embed_proj_dim=64,
    ),
    case("BloomForCausalLM", text, vocab_size=WORDS, hidden_size=64, n_layer=3, n_head=4),
    case("FalconForCausalLM", text, vocab_size=WORDS, hidden_size=64, num_hidden_layers=3, num_attention_heads=4),
    case("MambaForCausalLM", text, vocab_size=WORDS, hidden_size=32, num_hidden_layers=2, state_size=8),
    case("BertForMaskedLM", text, **TEXT),
    case("RobertaForMaskedLM", text, **TEXT),
    case("ModernBertForMaskedLM", text, **TEXT),
    case("ElectraForMaskedLM", text, **TEXT, embedding_size=64),
    case("AlbertForMaskedLM", text, **TEXT, embedding_size=32),
    case(
        "DistilBertForMaskedLM",
        text,
        vocab_size=WORDS,
        dim=64,
        n_layers=3,
        n_heads=4,
        hidden_dim=128,
        max_position_embeddings=128,
    ),
    case("MPNetForMaskedLM", text, **TEXT),
    case(
        "DebertaV2ForMaskedLM", text, **TEXT, relative_attention=True, position_buckets=16, pos_att_type=["p2c", "c2p"]
    ),
    case("FNetForMaskedLM", text, **TEXT),
    case("BertForSequenceClassification", sentences, **TEXT),
    case(
        "T5ForConditionalGeneration",
        pairs,
        vocab_size=WORDS,
        d_model=64,
        d_kv=16,
        d_ff=128,
        num_layers=2,
        num_heads=4,
        decoder_start_token_id=0,
    ),
    case("BartForConditionalGeneration", pairs, **TWO_SIDED, max_position_embeddings=128),
    case("PegasusForConditionalGeneration", pairs, **TWO_SIDED, max_position_embeddings=128),
    case(
        "WhisperForConditionalGeneration",
        spectra,
        **TWO_SIDED,
        max_source_positions=100,
        max_target_positions=64,
        num_mel_bins=80,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1,
        suppress_tokens=None,
        begin_suppress_tokens=None,
    ),
    case("ViTForImageClassification", images, **IMAGE),
    case("DeiTForImageClassification", images, **IMAGE),
    case("BeitForImageClassification", images, **IMAGE),
    case("Dinov2ForImageClassification", images, **IMAGE),
    case(
        "SwinForImageClassification",
        images,
        image_size=32,
        patch_size=2,
        embed_dim=24,
        depths=[1, 2],
        num_heads=[2, 4],
        window_size=4,
    ),
    case("ConvNextForImageClassification", large_images, hidden_sizes=[16, 32, 48, 64], depths=[1, 1, 2, 1]),
    case(
        "ResNetForImageClassification",
        large_images,
        embedding_size=16,
        hidden_sizes=[16, 32, 48, 64],
        depths=[1, 1, 1, 1],
        layer_type="basic",
    ),
    case(
        "RegNetForImageClassification",
        large_images,
        embedding_size=16,
        hidden_sizes=[16, 32, 48, 64],
        depths=[1, 1, 1, 1],
        groups_width=8,
    ),
    case("MobileNetV2ForImageClassification", large_images, depth_multiplier=0.35),
    case(
        "SegformerForSemanticSegmentation",
        maps,
        hidden_sizes=[16, 32, 40, 64],
        depths=[1, 1, 1, 1],
        num_attention_heads=[1, 2, 4, 8],
        decoder_hidden_size=32,
    ),
    case(
        "ViTMAEForPreTraining",
        lambda: {"pixel_values": waves(4, 3, 32, 32)},
        **IMAGE,
        decoder_hidden_size=32,
        decoder_num_attention_heads=4,
        decoder_num_hidden_layers=2,
        decoder_intermediate_size=64,
    ),
    case(
        "Wav2Vec2ForSequenceClassification",
        sound,
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=128,
        conv_dim=[16, 16, 16],
        conv_stride=[5, 4, 4],
        conv_kernel=[10, 6, 4],
        num_conv_pos_embeddings=16,
        num_conv_pos_embedding_groups=4,
        mask_time_prob=0.0,
    ),
    case("CLIPModel", captions, text_config=TEXT, vision_config=IMAGE),
]


@pytest.mark.parametrize("each", [pytest.param(each, id=each.name) for each in CASES])
def test_a_model_of_transformers_trains_the_same_at_half_of_what_it_needs(each: Case) -> None:
    assert_same_at_half(each)


@pytest.mark.parametrize("each", [pytest.param(each, id=each.name) for each in CASES if each.name in RECOMPUTED])
def test_a_model_of_transformers_trains_the_same_with_recomputes_alone(each: Case) -> None:
    assert_same(each.training, share=0.5)

"""What is trained under hard limits: name -> words, and the function that makes a step. Imports torch when it is made.

Models of transformers, diffusers, peft and MONAI are made from their configurations, without weights, on the device.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks.peaks import ALL as SMALL
from benchmarks.peers import CASES, SETTINGS

Step = Callable[[], Any]

LARGE = {
    **CASES,
    "swin_unetr": "MONAI SwinUNETR (48 features), 96^3, 14 classes, AdamW, fp32",
    "densenet121": "MONAI DenseNet-121, batch 32, 224 x 224, SGD momentum, fp32",
    "diffusion_unet": "diffusers UNet2DModel (128 to 512 channels), batch 8, 64 x 64, AdamW, fp32",
    "whisper": "transformers Whisper small, batch 4, 30 s, 128 tokens, AdamW, fp32",
    "llama_lora": "peft LoRA (rank 8) of a Llama of 1B, batch 2 x 1024, AdamW, bfloat16",
}
WORKLOADS = {**{name: name for name in SMALL}, **LARGE}


def made(name: str) -> Step:
    """Make the model of a workload, and the function of a step.

    Raises:
        KeyError: there is no such workload.
    """
    import torch

    torch.manual_seed(0)
    if name in SMALL:
        from tests.fakecuda.within_models import MODELS

        return MODELS[name]()
    if name in SETTINGS:
        from benchmarks.planning.models import setup_of

        return setup_of(name, **SETTINGS[name])()
    return _MADE[name]()


def _stepped(model: Any, loss: Callable[[], Any], *, momentum: bool = False) -> Step:
    """A step: gradients away, loss, backward, the optimizer's step."""
    import torch

    learnt = [each for each in model.parameters() if each.requires_grad]
    optimizer = torch.optim.SGD(learnt, 0.1, momentum=0.9) if momentum else torch.optim.AdamW(learnt)

    def step() -> None:
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()

    return step


def _volumes(net: Any, side: int) -> Step:
    import torch
    from torch.nn import functional

    net = net.cuda()
    volume = torch.zeros(1, 1, side, side, side, device="cuda")
    labels = torch.zeros(1, side, side, side, dtype=torch.long, device="cuda")
    return _stepped(net, lambda: functional.cross_entropy(net(volume), labels))


def _unet3d() -> Step:
    from monai.networks.nets import UNet

    return _volumes(UNet(3, 1, 2, (32, 64, 128, 256, 320), (2, 2, 2, 2), num_res_units=2), 160)


def _swin_unetr() -> Step:
    import torch
    from monai.networks.nets import SwinUNETR  # pyright: ignore[reportPrivateImportUsage]

    with torch.device("cpu"):  # the rig has no compiler for the kernel of erfinv, which its weights begin with
        net = SwinUNETR(in_channels=1, out_channels=14, feature_size=48)
    return _volumes(net, 96)


def _densenet121() -> Step:
    import torch
    from monai.networks.nets import DenseNet121  # pyright: ignore[reportPrivateImportUsage]
    from torch.nn import functional

    net = DenseNet121(spatial_dims=2, in_channels=3, out_channels=1000).cuda()
    pictures = torch.zeros(32, 3, 224, 224, device="cuda")
    labels = torch.zeros(32, dtype=torch.long, device="cuda")
    return _stepped(net, lambda: functional.cross_entropy(net(pictures), labels), momentum=True)


def _diffusion_unet() -> Step:
    import torch
    from diffusers import UNet2DModel  # pyright: ignore[reportMissingImports]
    from torch.nn import functional

    blocks = ("DownBlock2D", "DownBlock2D", "AttnDownBlock2D", "DownBlock2D")
    back = ("UpBlock2D", "AttnUpBlock2D", "UpBlock2D", "UpBlock2D")
    net: Any = UNet2DModel(
        sample_size=64, block_out_channels=(128, 256, 256, 512), down_block_types=blocks, up_block_types=back
    )
    net = net.cuda()
    pictures, noise = (torch.zeros(8, 3, 64, 64, device="cuda") for _ in range(2))
    times = torch.zeros(8, dtype=torch.long, device="cuda")
    return _stepped(net, lambda: functional.mse_loss(net(pictures, times).sample, noise))


def _whisper() -> Step:
    import torch
    from transformers import WhisperConfig, WhisperForConditionalGeneration  # pyright: ignore[reportMissingImports]

    layers = {"encoder_layers": 12, "decoder_layers": 12, "encoder_ffn_dim": 3072, "decoder_ffn_dim": 3072}
    heads = {"encoder_attention_heads": 12, "decoder_attention_heads": 12, "d_model": 768}
    with torch.device("cuda"):
        net: Any = WhisperForConditionalGeneration(WhisperConfig(vocab_size=51865, **layers, **heads))
        sound, words = torch.zeros(4, 80, 3000), torch.ones(4, 128, dtype=torch.long)
    net.train()
    return _stepped(net, lambda: net(input_features=sound, labels=words).loss)


def _llama_lora() -> Step:
    import torch
    from peft import LoraConfig, get_peft_model  # pyright: ignore[reportMissingImports]
    from transformers import LlamaConfig, LlamaForCausalLM  # pyright: ignore[reportMissingImports]

    sizes = {"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "vocab_size": 128_256}
    config = LlamaConfig(**sizes, num_attention_heads=32, num_key_value_heads=8, tie_word_embeddings=True)
    before = torch.get_default_dtype()
    try:
        torch.set_default_dtype(torch.bfloat16)
        with torch.device("cuda"):
            base = LlamaForCausalLM(config)
    finally:
        torch.set_default_dtype(before)
    net: Any = get_peft_model(base, LoraConfig(r=8, target_modules=["q_proj", "v_proj"]))
    net = net.cuda()
    words = torch.ones(2, 1024, dtype=torch.long, device="cuda")
    return _stepped(net, lambda: net(input_ids=words, labels=words).loss)


_MADE: dict[str, Callable[[], Step]] = {
    "unet3d": _unet3d,
    "swin_unetr": _swin_unetr,
    "densenet121": _densenet121,
    "diffusion_unet": _diffusion_unet,
    "whisper": _whisper,
    "llama_lora": _llama_lora,
}

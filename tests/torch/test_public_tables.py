"""Jobs of public tables, written again: parameters trained as their sources say, and rows that are read whole."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from benchmarks.accuracy.tables import litgpt, qwen, segmentation, torchtune, xmem
from elbowroom.answers.estimate import estimate
from elbowroom.capture.virtual import VirtualDevice
from elbowroom.machine import Machine

GB = 10**9


@pytest.mark.parametrize(
    ("model", "method", "trained"),
    [
        # a rank of 8 on queries and values: 2 x 8 x width down and (width + values) x 8 up, in every layer
        ("phi-1.5", "lora", 24 * (2 * 8 * 2048 + 2 * 2048 * 8)),  # 1,572,864 in the table
        ("StableLM Alpha", "lora", 2_097_152),
        ("Llama 2 7 B", "lora", 4_194_304),
        ("Llama 2 13 B", "lora", 6_553_600),
        # 8 of 128 heads have values: (8192 + 8 x 64) x 8 up
        ("Falcon", "lora", 60 * (2 * 8 * 8192 + (8192 + 512) * 8)),  # 12,042,240
        # ten tokens and a gate of each head from the third layer on
        ("StableLM Alpha", "adapter", 14 * (10 * 4096 + 32)),  # 573,888
        ("Llama 2 7 B", "adapter", 1_229_760),
        ("StableLM Alpha", "adapter_v2", 2_125_248),
        ("Llama 2 7 B", "adapter_v2", 4_279_744),
    ],
)
def test_a_fine_tuned_model_has_the_trained_parameters_of_its_table(model: str, method: str, trained: int) -> None:
    with torch.device("meta"):
        net = litgpt.model_of(model, method, "None")

    assert sum(each.numel() for each in net.parameters() if each.requires_grad) == trained


def test_weights_in_four_bits_are_half_a_byte_each_and_a_scale_for_64() -> None:
    with torch.device("meta"):
        once, twice = (litgpt.Linear4(512, 1024, False, twice=each) for each in (False, True))

    # 512 x 1024 / 2 bytes, 8192 scales of 4 bytes; or of 1 byte, and 32 of 4 bytes
    sizes = [sum(each.numel() * each.itemsize for each in layer.buffers()) for layer in (once, twice)]
    assert sizes == [262_144 + 32_768, 262_144 + 8_192 + 128]


def test_a_product_in_four_bits_gives_the_gradient_of_its_input_the_right_shape() -> None:
    layer = litgpt.Linear4(128, 64, True, twice=False)
    x = torch.zeros(2, 3, 128, requires_grad=True)

    layer(x).sum().backward()

    assert x.grad is not None
    assert x.grad.shape == (2, 3, 128)


def test_rows_are_read_with_what_was_measured_or_why_they_cannot_be_run(tmp_path: Path) -> None:
    # given one job that ran, one that did not fit, and one on several GPUs
    one, many = "Finetuning with LoRA on 1 GPU", "Finetuning with LoRA on Multiple GPUs"
    (tmp_path / "litgpt_resource_tables.csv").write_text(
        "file,section,columns\n"
        f"r.md,{one},Size,Model,Quantization,Microbatch size,Trainable parameters,Max GPU RAM,Time\n"
        f'r.md,{one},7 B,Llama 2,None,1,"4,194,304",21.30 GB,2 min\n'
        f'r.md,{one},7 B,Llama 2,None,4,"4,194,304",OOM,-\n'
        f'r.md,{many},7 B,Llama 2,None,1,"4,194,304",2 x A100,22.18 GB,6 min\n'
    )

    ran, failed, several = litgpt.rows(tmp_path)

    assert (ran.measured_bytes, ran.rounded_to_bytes, ran.level) == (21_300_000_000, GB // 100, "allocated")
    assert ran.spec == {"model": "Llama 2 7 B", "method": "lora", "quantization": "None", "batch": 1}
    assert failed.measured_bytes is None
    assert several.spec == ran.spec | {"ranks": 2}


def test_a_row_of_lengths_and_one_of_another_engine_are_told_apart(tmp_path: Path) -> None:
    (tmp_path / "qwen_finetune_profile.csv").write_text(
        "size,method,nodes,gpus,tokens,memory,speed\n7B,LoRA (emb),1,1,256,33.7,1.4\n7B,Q-LoRA,1,1,256,11.5,3.0\n"
    )

    trained, other = qwen.rows(tmp_path)

    assert trained.spec == {"size": "7B", "tokens": 256, "embeddings": True}
    assert (trained.measured_bytes, trained.level) == (33_700 * 2**20, "device")
    assert "DeepSpeed" in other.reason


def test_embeddings_that_are_trained_stand_beside_the_frozen_ones() -> None:
    # given Qwen's smallest; when its embedding and head are trained too; then it has 2 x 151936 x 2048 more of each
    with torch.device("meta"):
        known, more = ([*qwen.model_of("1.8B", 256, embeddings).parameters()] for embeddings in (False, True))

    added = sum(each.numel() for each in more) - sum(each.numel() for each in known)
    trained = [sum(each.numel() for each in parameters if each.requires_grad) for parameters in (known, more)]
    assert added == trained[1] - trained[0] == 2 * 151_936 * 2048


def test_lora_is_in_float32_beside_frozen_weights_of_the_default_dtype() -> None:
    # given a model of bfloat16; when LoRA is added to it; then nothing else is trained, and only that is float32
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device("meta"):
            net = qwen.model_of("1.8B", 256, embeddings=False)
    finally:
        torch.set_default_dtype(torch.float32)

    kinds = {(each.dtype, each.requires_grad) for each in net.parameters()}
    assert kinds == {(torch.bfloat16, False), (torch.float32, True)}


def test_the_older_adamw_holds_two_lists_of_temporaries() -> None:
    # given a weight of 1000 numbers, 4000 bytes in blocks of 512: 4096; when it is stepped
    with VirtualDevice(Machine.of("a100-80gb"), 1) as device:
        weight = torch.nn.Parameter(torch.zeros(1000, device="cuda"))
        weight.grad = torch.zeros(1000, device="cuda")
        qwen.AdamW([weight]).step()

    # then weight, gradient, two states, roots and divisors are there together
    assert estimate(device.trace(), Machine.of("a100-80gb")).peak_allocated.likely_bytes == 6 * 4096


def test_compiled_rows_are_left_out_and_the_one_of_full_sequences_is_not(tmp_path: Path) -> None:
    (tmp_path / "torchtune_readme.csv").write_text(
        "file,section,columns\nR,O,Technique,Peak\nR,O,Baseline,25.5\n"
        "R,O,[+ Packed Dataset](x),60.0\nR,O,[+ Compile](x),51.0\n"
    )

    baseline, packed, compiled = torchtune.rows(tmp_path)

    assert packed.measured_bytes == 60 * 2**30
    assert "lengths are not given" in baseline.reason
    assert "torch.compile" in compiled.reason


def test_a_row_of_the_segmentation_models_says_the_job(tmp_path: Path) -> None:
    found = {row.id: row for row in segmentation.rows(tmp_path)}

    half = found["segmentation-city-PSPNet-R-101h-512"]
    assert (half.measured_bytes, half.rounded_to_bytes) == (round(5.34 * 2**30), 2**30 // 100)
    assert half.spec == {
        "method": "PSPNet",
        "depth": "R-101",
        "size": [512, 1024],
        "batch": 2,
        "classes": 19,
        "half": True,
        "plain": False,
    }


def test_the_old_log_softmax_has_the_gradient_of_the_new_one() -> None:
    logits = torch.randn(2, 3, 4, 4, dtype=torch.float64, requires_grad=True)

    assert torch.autograd.gradcheck(segmentation.LogSoftmax.apply, (logits,))  # pyright: ignore[reportPrivateImportUsage]


def test_runs_of_xmem_come_with_what_others_predicted_and_those_out_of_memory_without_a_figure(tmp_path: Path) -> None:
    found = {row.id: row for row in xmem.rows(tmp_path)}

    ran, failed = found["xmem-VGG16-Adagrad-b480-rtx3060"], found["xmem-VGG16-SGD-b657-rtx4060"]
    assert (ran.measured_bytes, ran.level) == (9_730_785_280, "within")
    assert ran.rivals == {"xMem": 9_787_408_384, "DNNMem": 7_233_077_248, "SchedTune": 10_677_167_063}
    assert failed.measured_bytes is None

"""Fine-tune a language model with the Trainer of Hugging Face's transformers.

    pip install transformers accelerate
    python examples/hf_finetune.py --size tiny --max_steps 3                                  # also on a CPU
    elbowroom estimate examples/hf_finetune.py --gpu rtx4090,l4 -- --size gpt2-medium --bf16
    elbowroom largest examples/hf_finetune.py --vary per_device_train_batch_size=1..256 --gpu l4 -- --size gpt2 --bf16

The model is built from its configuration and the text is random, so nothing is downloaded; --pretrained NAME loads
weights. The script knows nothing of elbowroom.
"""

from __future__ import annotations

import argparse
import tempfile
from typing import Any

import torch
from torch.utils.data import Dataset

SIZES: dict[str, dict[str, int]] = {
    "tiny": {"n_layer": 2, "n_head": 2, "n_embd": 64},
    "gpt2": {"n_layer": 12, "n_head": 12, "n_embd": 768},
    "gpt2-medium": {"n_layer": 24, "n_head": 16, "n_embd": 1024},
    "gpt2-large": {"n_layer": 36, "n_head": 20, "n_embd": 1280},
}


class RandomText(Dataset[dict[str, torch.Tensor]]):
    """Texts of random tokens, all of one length."""

    def __init__(self, vocabulary: int, length: int) -> None:
        self.vocabulary, self.length = vocabulary, length

    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        tokens = torch.randint(self.vocabulary, (self.length,))
        return {"input_ids": tokens, "attention_mask": torch.ones_like(tokens), "labels": tokens}


def model_of(arguments: argparse.Namespace) -> Any:
    from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel

    if arguments.pretrained:
        return AutoModelForCausalLM.from_pretrained(arguments.pretrained)
    return GPT2LMHeadModel(GPT2Config(n_positions=max(1024, arguments.length), **SIZES[arguments.size]))


def main() -> None:
    parser = argparse.ArgumentParser(description="Fine-tune a language model.")
    parser.add_argument("--size", choices=tuple(SIZES), default="tiny")
    parser.add_argument("--pretrained", help="name of a model on the hub, or its folder")
    parser.add_argument("--length", type=int, default=256, help="tokens in a text")
    parser.add_argument("--per_device_train_batch_size", type=int, default=4)
    parser.add_argument("--gradient_accumulation_steps", type=int, default=1)
    parser.add_argument("--gradient_checkpointing", action="store_true")
    parser.add_argument("--bf16", action="store_true")
    parser.add_argument("--max_steps", type=int, default=10)
    arguments = parser.parse_args()

    from transformers import Trainer, TrainingArguments

    model = model_of(arguments)
    with tempfile.TemporaryDirectory() as folder:
        settings = TrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=arguments.per_device_train_batch_size,
            gradient_accumulation_steps=arguments.gradient_accumulation_steps,
            gradient_checkpointing=arguments.gradient_checkpointing,
            bf16=arguments.bf16,
            max_steps=arguments.max_steps,
            learning_rate=5e-5,
            logging_steps=1,
            save_strategy="no",
            report_to="none",
        )
        data = RandomText(model.config.vocab_size, arguments.length)
        Trainer(model=model, args=settings, train_dataset=data).train()


if __name__ == "__main__":
    main()

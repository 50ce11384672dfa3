"""The callback for Hugging Face trainers, in a trainer of TRL with LoRA: the same numbers within a budget."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.integrations.both_ways import outcome, same_within
from tests.torch.helpers import Outcome

trl: Any = pytest.importorskip("trl", reason="trl is not installed: `make test-integrations` does that")
peft: Any = pytest.importorskip("peft", reason="peft is not installed: `make test-integrations` does that")
datasets: Any = pytest.importorskip("datasets")
transformers: Any = pytest.importorskip("transformers")
huggingface: Any = pytest.importorskip("elbowroom.integrations.huggingface")

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

STEPS = 6


def tokenizer() -> Any:
    """A word for each number below 100."""
    from tokenizers import Tokenizer, models, pre_tokenizers  # pyright: ignore[reportMissingImports]

    words = Tokenizer(models.WordLevel({str(n): n for n in range(100)} | {"<end>": 100}, unk_token="<end>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=words, eos_token="<end>", pad_token="<end>")


@pytest.mark.parametrize("adapts", [False, True], ids=["full", "LoRA"])
def test_supervised_fine_tuning_gives_the_same_numbers_within_a_budget(adapts: bool, tmp_path: Path) -> None:
    texts = [{"text": " ".join(str((7 * n + k * k) % 100) for k in range(64))} for n in range(32)]

    def train(callback: Any) -> Outcome:
        transformers.set_seed(0)
        config = transformers.LlamaConfig(
            vocab_size=101, hidden_size=48, intermediate_size=96, num_hidden_layers=3, num_attention_heads=4
        )
        trainer = trl.SFTTrainer(
            transformers.LlamaForCausalLM(config),
            trl.SFTConfig(
                str(tmp_path),
                max_steps=STEPS,
                per_device_train_batch_size=4,
                gradient_accumulation_steps=2,
                gradient_checkpointing=False,
                bf16=False,
                use_cpu=True,
                logging_steps=1,
                report_to=[],
                disable_tqdm=True,
            ),
            train_dataset=datasets.Dataset.from_list(texts),
            processing_class=tokenizer(),
            callbacks=[] if callback is None else [callback],
            peft_config=peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"]) if adapts else None,
        )
        trainer.train()
        return outcome([line["loss"] for line in trainer.state.log_history if "loss" in line], trainer.model)

    room = same_within(train, huggingface.TrainerRoom)

    assert len(room.steps) == STEPS

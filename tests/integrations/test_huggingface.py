"""The callback for Hugging Face trainers: evaluated, saved, accumulated and resumed trainings keep their bits."""

from __future__ import annotations

import gc
import os
import socket
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.multiprocessing as mp
from torch.utils.data import Dataset

import elbowroom as er
from elbowroom.run.room import run_of
from tests.integrations.both_ways import outcome, same_within, tight
from tests.rank_ends import end_rank
from tests.torch.helpers import MIN_SIZE_BYTES, Outcome, assert_equal, moved_categories

os.environ.setdefault("HF_HUB_OFFLINE", "1")
transformers: Any = pytest.importorskip(
    "transformers", reason="transformers is not installed: `make test-integrations` does that"
)
pytest.importorskip("accelerate", reason="accelerate is not installed: `make test-integrations` does that")
huggingface: Any = pytest.importorskip("elbowroom.integrations.huggingface")

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

WORDS, LENGTH, STEPS = 97, 64, 8


class Texts(Dataset[dict[str, torch.Tensor]]):
    def __init__(self, count: int, seed: int) -> None:
        self.ids = torch.randint(0, WORDS, (count, LENGTH), generator=torch.Generator().manual_seed(seed))

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, n: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.ids[n], "labels": self.ids[n]}


def gpt2() -> Any:
    transformers.set_seed(0)
    config = transformers.GPT2Config(
        vocab_size=WORDS, n_positions=LENGTH, n_embd=48, n_layer=3, n_head=4, bos_token_id=0, eos_token_id=0
    )
    return transformers.GPT2LMHeadModel(config)


def trainer(folder: Path, callback: Any, others: Any = (), **options: Any) -> Any:
    given = {
        "per_device_train_batch_size": 4,
        "gradient_accumulation_steps": 2,
        "max_steps": STEPS,
        "logging_steps": 1,
        "report_to": [],
        "use_cpu": True,
        "disable_tqdm": True,
        "warmup_steps": 2,
        "max_grad_norm": 1.0,
    }
    arguments = transformers.TrainingArguments(str(folder), **given | options)
    callbacks = [*others, *([] if callback is None else [callback])]
    return transformers.Trainer(
        gpt2(), arguments, train_dataset=Texts(64, 1), eval_dataset=Texts(8, 2), callbacks=callbacks
    )


def logged(trained: Any) -> Outcome:
    names = ("loss", "eval_loss", "grad_norm")
    return outcome([line[name] for line in trained.state.log_history for name in names if name in line], trained.model)


EVALUATED = {"eval_strategy": "steps", "eval_steps": 3}
SAVED = {"save_strategy": "steps", "save_steps": 3}
WAYS: dict[str, dict[str, Any]] = {
    "accumulated": {},
    "evaluated and saved": EVALUATED | SAVED | {"load_best_model_at_end": True},
    "bfloat16": {"bf16": True},
    "checkpointed layers": {"gradient_checkpointing": True},
    "adafactor": {"optim": "adafactor"},
    "one batch a step": {"gradient_accumulation_steps": 1},
}


@pytest.mark.parametrize("way", WAYS)
def test_a_trainer_gives_the_same_numbers_within_a_budget(way: str, tmp_path: Path) -> None:
    def train(callback: Any) -> Outcome:
        trained = trainer(tmp_path, callback, **WAYS[way])
        trained.train()
        return logged(trained)

    room = same_within(train, huggingface.TrainerRoom)

    assert len(room.steps) == STEPS


def test_optimizer_states_leave(tmp_path: Path) -> None:
    # given a model whose states are most of what a step holds
    def train(callback: Any) -> Outcome:
        trained = trainer(tmp_path, callback, per_device_train_batch_size=1, gradient_accumulation_steps=1)
        trained.train()
        return logged(trained)

    room = same_within(train, huggingface.TrainerRoom, share=0.1, allow=("swap", "state"))

    assert "optimizer_state" in moved_categories(room)


def test_a_training_is_resumed_from_a_checkpoint_of_another_that_ran_within_a_budget(tmp_path: Path) -> None:
    def train(callback: Any, folder: str) -> Outcome:
        trained = trainer(tmp_path / folder, callback, **SAVED)
        trained.train()
        return logged(trained)

    def resumed(callback: Any, folder: str) -> Outcome:
        trained = trainer(tmp_path / folder, callback, **SAVED)
        trained.train(resume_from_checkpoint=str(tmp_path / folder / "checkpoint-3"))
        return logged(trained)

    # when
    plain = train(None, "plain")
    budget = tight(lambda callback: train(callback, "plenty"), huggingface.TrainerRoom)
    rooms = [huggingface.TrainerRoom(budget, min_size=MIN_SIZE_BYTES) for _ in range(2)]
    whole, second = train(rooms[0], "within"), resumed(rooms[1], "within")

    # then: both end with the weights of a plain training that was never left
    assert_equal(whole, plain)
    assert_equal(Outcome([], second.state), Outcome([], plain.state))
    assert_equal(second, resumed(None, "plain"))
    assert len(rooms[1].room.steps) == STEPS - 3


def test_early_stopping_ends_the_room(tmp_path: Path) -> None:
    def train(callback: Any) -> Outcome:
        stopping = transformers.EarlyStoppingCallback(early_stopping_patience=1, early_stopping_threshold=10.0)
        options = {
            "load_best_model_at_end": True,
            "metric_for_best_model": "eval_loss",
            "save_steps": 2,
            "eval_steps": 2,
        }
        trained = trainer(tmp_path, callback, [stopping], **EVALUATED | SAVED | options)
        trained.train()
        assert trained.state.global_step == 4  # the second evaluation is no better by 10
        return logged(trained)

    same_within(train, huggingface.TrainerRoom)


class Breaks(transformers.TrainerCallback):
    """Ends a training with an error after some steps."""

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step == 2:
            raise KeyError("a mistake of the user")


def test_a_room_that_an_error_left_open_is_closed_by_the_next_training(tmp_path: Path) -> None:
    # given
    callback = huggingface.TrainerRoom("1TiB", min_size=MIN_SIZE_BYTES)
    with pytest.raises(KeyError, match="a mistake of the user"):
        trainer(tmp_path, callback, [Breaks()]).train()
    # when
    first, trained = callback.room, trainer(tmp_path, callback)
    trained.train()
    # then
    assert callback.room is not first
    assert len(callback.room.steps) == STEPS
    plain = trainer(tmp_path, None)
    plain.train()
    assert_equal(logged(trained), logged(plain))


def test_a_room_that_an_error_left_open_lasts_until_it_is_closed(tmp_path: Path) -> None:
    # given a callback that nobody has any more, and a training that goes on
    trained = trainer(tmp_path, huggingface.TrainerRoom("1TiB"), [Breaks()])
    with pytest.raises(KeyError):
        trained.train()
    close = next(each for each in trained.callback_handler.callbacks if hasattr(each, "room")).close
    del trained
    gc.collect()
    # when, then
    with pytest.raises(er.UsageError, match=r"if an error ended that training, call close\(\) of its callback"):
        trainer(tmp_path, huggingface.TrainerRoom("1TiB")).train()
    close()
    with er.within("1TiB"):
        pass


def test_a_budget_that_no_plan_meets_ends_the_training_with_the_least(tmp_path: Path) -> None:
    callback = huggingface.TrainerRoom("1MiB")
    with pytest.raises(er.Infeasible, match=r"The least that "):
        trainer(tmp_path, callback).train()
    callback.close()


@pytest.mark.parametrize(("options", "message"), [({"least": 1}, "least"), ({"planner": "none"}, "planner")])
def test_options_are_checked_where_the_callback_is_made(options: dict[str, Any], message: str) -> None:
    with pytest.raises(er.UsageError, match=message):
        huggingface.TrainerRoom("1GiB", **options)
    with pytest.raises(er.UsageError, match="much"):
        huggingface.TrainerRoom("much")


def one_of_two(rank: int, folder: str, port: int, budget: int) -> None:
    """A rank of a trainer that shares batches among two."""
    torch.set_num_threads(1)
    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": "2",
        "LOCAL_WORLD_SIZE": "2",
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": str(port),
    }
    callback = huggingface.TrainerRoom(budget, min_size=MIN_SIZE_BYTES) if budget else None
    trained = trainer(Path(folder) / "trained", callback, ddp_backend="gloo")
    trained.train()
    torch.save(trained.model.state_dict(), f"{folder}/{budget}.rank{rank}")
    if callback is not None:
        peak_bytes = run_of(callback.room).kinds.keep_all_bytes
        swapped = callback.room.steps[-1].swapped_out_bytes
        Path(folder, f"said{rank}").write_text(f"{peak_bytes} {swapped} {run_of(callback.room).over_bytes}")
    end_rank()


def test_two_ranks_train_within_a_budget_each(tmp_path: Path) -> None:
    def train(budget: int) -> list[list[int]]:
        with socket.socket() as found:
            found.bind(("localhost", 0))
            port = found.getsockname()[1]
        mp.spawn(one_of_two, (str(tmp_path), port, budget), nprocs=2)  # pyright: ignore[reportPrivateImportUsage]
        return [[int(word) for word in (tmp_path / f"said{n}").read_text().split()] for n in (0, 1)] if budget else []

    # when
    train(0)
    most = max(peak for peak, *_ in train(2**40))
    budget = int(0.9 * most)
    said = train(budget)
    # then
    for rank, (_, swapped, over) in enumerate(said):
        assert swapped > 0
        assert over == 0
        plain = torch.load(tmp_path / f"0.rank{rank}")
        inside = torch.load(tmp_path / f"{budget}.rank{rank}")
        assert_equal(Outcome([], inside), Outcome([], plain))

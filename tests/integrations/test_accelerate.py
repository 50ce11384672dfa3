"""Loops of Accelerate inside `within`: accumulation, clipping, saved states and mixed precision keep their bits."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import elbowroom as er
from tests.integrations.both_ways import Around, blocks, outcome, rows, same_within
from tests.torch.helpers import Outcome

accelerate: Any = pytest.importorskip(
    "accelerate", reason="accelerate is not installed: `make test-integrations` does that"
)

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

BATCHES, ROWS = 12, 512


def loop(folder: Path | None = None, loads: bool = False, **options: Any) -> Outcome:
    torch.manual_seed(0)
    accelerator = accelerate.Accelerator(cpu=True, **options)
    model = blocks()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    data = DataLoader(TensorDataset(rows(BATCHES * ROWS)), batch_size=ROWS)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
    model, optimizer, data, schedule = accelerator.prepare(model, optimizer, data, schedule)
    if loads:
        accelerator.load_state(str(folder))
    losses = []
    for (x,) in data:
        with accelerator.accumulate(model):
            loss = model(x).square().mean()
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 0.1)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
        losses.append(loss.item())
        if folder is not None and not loads and len(losses) == BATCHES // 2:
            accelerator.save_state(str(folder))
    return outcome(losses, accelerator.unwrap_model(model))


WAYS: dict[str, dict[str, Any]] = {
    "one batch a step": {},
    "accumulated": {"gradient_accumulation_steps": 3},
    "bfloat16": {"mixed_precision": "bf16"},
}


@pytest.mark.parametrize("way", WAYS)
def test_a_loop_gives_the_same_numbers_within_a_budget(way: str) -> None:
    def train(around: Any) -> Outcome:
        accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
        if around is None:
            return loop(**WAYS[way])
        with around:
            return loop(**WAYS[way])

    room = same_within(train, Around)

    assert len(room.steps) == BATCHES // WAYS[way].get("gradient_accumulation_steps", 1)


def test_what_is_saved_in_the_middle_and_loaded_is_that_of_a_plain_loop(tmp_path: Path) -> None:
    def train(around: Any) -> Outcome:
        if around is None:
            return loop(tmp_path / "plain")
        with around:
            return loop(tmp_path / "within")

    same_within(train, Around)
    plain = loop(tmp_path / "plain", loads=True)
    with er.within("1TiB"):
        inside = loop(tmp_path / "within", loads=True)

    assert [each.item() for each in inside.losses] == [each.item() for each in plain.losses]


# How it ends: Note: [The end of a rank] in tests/rank_ends.py
SCRIPT = """
import gc, hashlib, json, os, sys
import torch.distributed.nn
from tests.integrations.test_accelerate import loop
found = loop(gradient_accumulation_steps=2)
bits = b"".join(value.numpy().tobytes() for value in found.state.values())
with open(sys.argv[1] + os.environ["RANK"], "w") as file:
    json.dump([[each.item() for each in found.losses], hashlib.sha256(bits).hexdigest()], file)
gc.collect()
torch.distributed.destroy_process_group()
"""


def test_two_ranks_of_torchrun_train_within_a_budget_each(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)

    def launched(*ours: str, out: str) -> list[Any]:
        words = ["--standalone", "--nproc-per-node", "2"]
        done = subprocess.run(
            [sys.executable, "-m", "torch.distributed.run", *words, *ours, str(script), str(tmp_path / out)],
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
            env=os.environ | {"ACCELERATE_USE_CPU": "true"},
        )
        assert done.returncode == 0, done.stderr[-3000:]
        return [json.loads((tmp_path / f"{out}{rank}").read_text()) for rank in (0, 1)]

    # when
    plain = launched(out="plain")
    figures = tmp_path / "figures.json"
    inside = launched("-m", "elbowroom", "run", "--budget", "1GiB", "--json", str(figures), out="within")
    # then
    assert inside == plain
    for rank in (0, 1):
        said = json.loads((tmp_path / f"figures.rank{rank}.json").read_text())
        assert said["over_budget_bytes"] == 0
        assert len(said["steps"]) == BATCHES // 2 // 2

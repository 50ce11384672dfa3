"""Figures of each step go to a logger, and change nothing of the training."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

import elbowroom as er
from elbowroom.errors import UsageError

NAMES = {
    "elbowroom/step_seconds",
    "elbowroom/stall_seconds",
    "elbowroom/swapped_out_bytes",
    "elbowroom/swapped_back_bytes",
    "elbowroom/recomputed_bytes",
    "elbowroom/budget_bytes",
}


class Scalars:
    """Stands for TensorBoard's SummaryWriter."""

    def __init__(self) -> None:
        self.rows: dict[int, dict[str, float]] = {}

    def add_scalar(self, tag: str, scalar_value: float, global_step: int) -> None:
        self.rows.setdefault(global_step, {})[tag] = scalar_value


class Plain:
    """An object with log alone."""

    def __init__(self) -> None:
        self.rows: dict[int, dict[str, float]] = {}

    def log(self, values: dict[str, float], step: int) -> None:
        assert step not in self.rows
        self.rows[step] = values


class Waiting:
    """Stands for a run of Weights & Biases: values wait for the row that ends with a commit."""

    def __init__(self) -> None:
        self.metrics: list[tuple[str, str]] = []
        self.rows: list[dict[str, float]] = []
        self.row: dict[str, float] = {}

    def define_metric(self, name: str, step_metric: str) -> None:
        self.metrics.append((name, step_metric))

    def log(self, data: dict[str, float], step: int | None = None, commit: bool = True) -> None:
        assert step is None
        self.row.update(data)
        if commit:
            self.rows.append(self.row)
            self.row = {}


class Closed:
    """A writer that was closed."""

    def __init__(self) -> None:
        self.calls = 0

    def add_scalar(self, tag: str, scalar_value: float, global_step: int) -> None:
        self.calls += 1
        raise ValueError("closed")


def train(steps: int, *writers: Any, budget: str = "14MiB", after: Any = None) -> list[str]:
    """Losses and a weight of some steps, bit by bit: layers of 256 x 256 on 1024 rows save 1 MiB each."""
    torch.manual_seed(0)
    layers = [torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.Tanh()) for _ in range(8)]
    model = torch.nn.Sequential(*layers)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data, losses = torch.randn(1024, 256), []
    with er.within(budget, min_size="512KiB") as room:
        for writer in writers:
            room.log_to(writer)
        for _ in range(steps):
            optimizer.zero_grad()
            loss = model(data).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.item().hex())
            if after is not None:
                after(loss.item())
    return [*losses, *(float(each.detach().sum()).hex() for each in model.parameters())]


def test_each_step_is_written_with_its_number_and_the_same_bits_come_out() -> None:
    plain = train(5)
    scalars, rows = Scalars(), Plain()

    logged = train(5, scalars, rows)

    assert logged == plain
    assert scalars.rows == rows.rows
    assert sorted(rows.rows) == [1, 2, 3, 4, 5]
    assert all(set(row) == NAMES for row in rows.rows.values())
    assert {row["elbowroom/budget_bytes"] for row in rows.rows.values()} == {14 * 2**20}
    assert all(row["elbowroom/step_seconds"] > 0 for row in rows.rows.values())
    # a storage that leaves has 1 MiB
    assert all(row["elbowroom/swapped_out_bytes"] >= 2**20 for row in rows.rows.values())


def test_the_user_has_a_row_with_the_figures_of_the_step_before() -> None:
    run = Waiting()

    train(3, run, after=lambda loss: run.log({"loss": loss}))

    assert run.metrics == [("elbowroom/*", "elbowroom/step")]
    # a step ends when the next one begins: its figures are in the next row
    assert [row.get("elbowroom/step") for row in [*run.rows, run.row]] == [None, 1, 2, 3]
    assert all("loss" in row for row in run.rows)


def test_steps_of_a_training_that_rests_are_all_written_in_order() -> None:
    rows = Plain()

    # given a job that fits, whose steps run without hooks after the first ones
    train(30, rows, budget="1GiB")

    assert list(rows.rows) == list(range(1, 31))
    assert all(row["elbowroom/swapped_out_bytes"] == 0 for row in list(rows.rows.values())[5:])


def test_a_writer_that_fails_gets_no_more_and_the_training_goes_on() -> None:
    closed, rows = Closed(), Plain()

    with pytest.warns(RuntimeWarning, match="failed after step 1 and gets no more figures: ValueError: closed"):
        train(3, closed, rows)

    assert closed.calls == 1
    assert sorted(rows.rows) == [1, 2, 3]


def test_an_object_that_cannot_be_written_to_is_refused() -> None:
    with (
        er.within("1GiB") as room,
        pytest.raises(UsageError, match=r"log_to: given dict; allowed is an object with add_scalar.*; give one of"),
    ):
        room.log_to({})


def test_tensorboard_reads_the_figures_back(tmp_path: Any) -> None:
    reason = "TensorBoard is not installed: the protocol of its writer is tested above"
    pytest.importorskip("tensorboard", reason=reason)
    from tensorboard.backend.event_processing.event_accumulator import (  # pyright: ignore[reportMissingImports]
        EventAccumulator,
    )
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(tmp_path)) as writer:
        train(4, writer)
    found = EventAccumulator(str(tmp_path))
    found.Reload()

    assert set(found.Tags()["scalars"]) == NAMES
    assert [event.step for event in found.Scalars("elbowroom/budget_bytes")] == [1, 2, 3, 4]
    assert {event.value for event in found.Scalars("elbowroom/budget_bytes")} == {14 * 2**20}


WANDB_RUN = """
import json, struct, sys
from pathlib import Path

import wandb
from wandb.proto.wandb_internal_pb2 import Record

from tests.torch.test_step_loggers import train

def rows_of(path):
    data, at, text = path.read_bytes(), 7, b""  # a log of LevelDB: 32 KiB blocks of (checksum, length, kind, text)
    while at + 7 < len(data):
        if 32768 - at % 32768 < 7:
            at += 32768 - at % 32768
        _, length, kind = struct.unpack_from("<IHB", data, at)
        text += data[at + 7:at + 7 + length]
        at += 7 + length
        if kind in (1, 4):
            record, text = Record.FromString(text), b""
            if record.HasField("history"):
                items = record.history.item
                yield {each.key or "/".join(each.nested_key): json.loads(each.value_json) for each in items}

with wandb.init(project="steps", mode="offline", dir=sys.argv[1]) as run:
    train(4, run, after=lambda loss: run.log({"loss": loss}))
(log,) = Path(sys.argv[1]).glob("wandb/offline-run-*/*.wandb")
print("ROWS", json.dumps(list(rows_of(log))))
"""


def test_weights_and_biases_has_each_step_in_the_rows_of_the_training(tmp_path: Path) -> None:
    if find_spec("wandb") is None:
        pytest.skip("Weights & Biases is not installed: the protocol of its run is tested above")
    command = [sys.executable, "-c", WANDB_RUN, str(tmp_path)]
    surroundings = {**os.environ, "WANDB_SILENT": "true", "WANDB_CONFIG_DIR": str(tmp_path), "HOME": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=surroundings, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]

    rows = json.loads(done.stdout.split("ROWS ")[1].splitlines()[0])

    # a step ends when the next one begins, so its figures are in the next row; the last one's are in a row of their own
    assert [row.get("elbowroom/step") for row in rows] == [None, 1, 2, 3, 4]
    assert ["loss" in row for row in rows] == [True] * 4 + [False]
    assert all(set(row) >= NAMES for row in rows[1:])

"""er.largest: the largest value of a training, given as a function or as a script."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import elbowroom as er
from elbowroom import search as search_module
from elbowroom.answers.slowdown import SlowdownNeed
from elbowroom.cli import main
from elbowroom.errors import CaptureError, UsageError
from elbowroom.machine import Link, Tier
from elbowroom.planners import Means
from elbowroom.trace import Trace
from tests.cli.answers import answered
from tests.torch.virtual_gpu import H100

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

WIDTH = 1024
CAPACITY = 256 * 2**20
SMALL = replace(
    H100,
    name="small",
    tiers=(Tier(name="device", capacity_bytes=CAPACITY), Tier(name="host", capacity_bytes=2**34)),
    links=(Link(upper="device", lower="host", out_bytes_per_s=2**34, back_bytes_per_s=2**34, latency_ns=1000),),
)


def setup_of(batch_size: int, width: int = WIDTH) -> Callable[[], None]:
    if batch_size > 100_000:
        raise ValueError("too many rows")
    layers = [each for _ in range(4) for each in (torch.nn.Linear(width, width), torch.nn.Sigmoid())]
    model = torch.nn.Sequential(*layers, torch.nn.Linear(width, 1)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step() -> None:
        optimizer.zero_grad()
        model(torch.randn(batch_size, width, device="cuda")).sum().backward()
        optimizer.step()

    return step


SCRIPT = """
import torch
BATCH = 4
model = torch.nn.Sequential(torch.nn.Linear(1024, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 1)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(4):
    optimizer.zero_grad()
    model(torch.randn(BATCH, 1024, device="cuda")).sum().backward()
    optimizer.step()
"""


def needed_bytes(batch_size: int) -> int:
    return er.estimate(er.capture(partial(setup_of, batch_size), SMALL), SMALL).needed_bytes


def test_the_largest_batch_of_a_function_fits_and_the_next_does_not() -> None:
    # when
    found = er.largest(setup_of, vary="batch_size", lower=1, upper=60_000, machine=SMALL)

    # then
    assert found.value is not None
    assert found.too_large is not None
    assert needed_bytes(found.value) <= CAPACITY < needed_bytes(found.too_large.value)
    assert (found.too_large.value - found.value) * 100 <= found.value


def test_a_script_is_varied_by_its_constant_as_the_command_line_does(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)

    # when: 2**15 and 2**16 rows of 4 KiB take 128 and 256 MiB, twice and more: input and activation
    found = er.largest(path, vary="BATCH", lower=2**15, upper=2**16, multiple_of=2**15, machine=SMALL)

    # then
    assert [probe.value for probe in found.probes] == [2**15]
    assert (found.value, found.capacity_bytes) == (None, CAPACITY)


def test_a_plan_within_a_slowdown_lets_a_larger_value_fit() -> None:
    alone = er.largest(setup_of, vary="batch_size", lower=512, upper=60_000, machine=SMALL, multiple_of=512)
    planned = er.largest(
        setup_of, vary="batch_size", lower=512, upper=60_000, machine=SMALL, multiple_of=512, slowdown=100.0
    )

    assert (planned.value or 0) > (alone.value or 0) > 0


@pytest.mark.parametrize(
    ("allow", "kinds"),
    [(None, {"accumulation", "optimizer"}), (("swap", "parameter"), {"optimizer", "use"}), (("swap",), set())],
)
def test_plans_within_a_slowdown_see_what_they_may_move(
    allow: tuple[Means, ...] | None, kinds: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Trace] = []

    def need(trace: Trace, *_: Any, **__: Any) -> SlowdownNeed:
        seen.append(trace)
        return SlowdownNeed(needed_bytes=1, capacity_bytes=CAPACITY, kept_step_ns=1, step_ns=1)

    monkeypatch.setattr(search_module, "within_slowdown", need)

    er.largest(setup_of, vary="batch_size", lower=8, upper=8, machine=SMALL, slowdown=1.2, allow=allow)

    assert len(seen) == 1
    assert kinds <= {part.kind for part in seen[0].parts}
    assert bool(seen[0].parts) == bool(kinds)


DEEP = """
import torch
LAYERS = 4
model = torch.nn.Sequential(*(torch.nn.Linear(8192, 8192, bias=False) for _ in range(LAYERS))).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(4):
    optimizer.zero_grad()
    model(torch.randn(64, 8192, device="cuda")).sum().backward()
    optimizer.step()
"""


def test_weights_states_and_gradients_are_away_in_a_search_for_the_number_of_layers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (path := tmp_path / "train.py").write_text(DEEP)
    words = ["largest", str(path), "--vary", "LAYERS=16,32,64", "--gpu", "rtx4090", "--json"]

    def found(*more: str) -> Any:
        main([*words, *more])
        return answered(capsys.readouterr().out, "largest")

    alone, planned = (
        found(),
        found("--within", "100x", "--planner", "swap_states", "--allow", "swap,state,gradient,parameter"),
    )

    # then of 24 GiB 16 layers take 16 with gradients and two states, and 64 layers' weights alone would take 16
    assert alone["largest"]["value"] == 16
    assert planned["largest"]["value"] == 64
    assert alone["captures"] * 2 <= planned["captures"]
    within = next(probe for probe in planned["probes"] if probe["value"] == 64)
    assert within["planned"]["fits"]
    assert not within["fits"]
    assert within["needed_bytes"] > 64 * 2**30 > within["planned"]["needed_bytes"]


def test_a_training_that_fails_says_with_which_value() -> None:
    with pytest.raises((CaptureError, ValueError), match="too many rows"):
        er.largest(setup_of, vary="batch_size", lower=200_000, upper=300_000, machine=SMALL)


def test_arguments_that_are_not_allowed_are_usage_errors() -> None:
    find = partial(er.largest, vary="batch_size", lower=1, upper=2, machine=SMALL)
    with pytest.raises(UsageError, match=r"given slowdown=0\.5; allowed is a factor of 1 or more"):
        find(setup_of, slowdown=0.5)
    with pytest.raises(UsageError, match="given allow without slowdown"):
        find(setup_of, allow=["swap"])
    with pytest.raises(UsageError, match="given argv and a function"):
        find(setup_of, argv=["--width", "3"])
    with pytest.raises(UsageError, match="given setup_of=int"):
        find(3)  # pyright: ignore[reportArgumentType]


SHARDED = """
import argparse, os, torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
parser = argparse.ArgumentParser()
parser.add_argument("--replicas", type=int, default=1)
parser.add_argument("--batch-size", type=int, default=8)
args = parser.parse_args()
mesh = init_device_mesh("cuda", (args.replicas, int(os.environ["WORLD_SIZE"]) // args.replicas), mesh_dim_names="ab")
model = torch.nn.Sequential(*(torch.nn.Linear(2048, 2048, bias=False) for _ in range(4))).cuda()
for layer in model:
    fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)
optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
for _ in range(5):
    model(torch.randn(args.batch_size, 2048, device="cuda")).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_layouts_of_a_torchrun_script_are_captured_as_one_of_their_ranks(tmp_path: Path) -> None:
    (script := tmp_path / "train.py").write_text(SHARDED)
    room = replace(SMALL, tiers=(Tier(name="device", capacity_bytes=192 * 2**20), *SMALL.tiers[1:]))

    found = er.layouts(script, ["ranks=2,8", "arg:replicas=1,2,3"], room)

    # parameters, gradients and two states are 256 MiB over 2 ranks, and 128 MiB a rank must fit beside a layer's
    values = [tuple(dict(each.values).values()) for each in found.layouts]
    assert values == [(2, 1), (2, 2), (2, 3), (8, 1), (8, 2), (8, 3)]
    needs = {value: each.needed_bytes for value, each in zip(values, found.layouts, strict=True)}
    assert needs[8, 1] < needs[8, 2] < needs[2, 1] < needs[2, 2]
    assert found.layouts[2].answer is None
    assert found.layouts[2].problem.startswith("with ranks = 2, replicas = 3: ")
    assert found.cheapest is not None
    assert dict(found.cheapest.values)["ranks"] == 8
    assert not found.layouts[1].fits
    # a rank's operations times the ranks: 4 times as many samples
    assert found.layouts[3].work_flops == 4 * found.layouts[0].work_flops > 0

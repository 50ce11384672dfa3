"""capture_script of a stage of a pipeline: what other ranks send it is really sent, as they run too."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
import torch.distributed as dist

from elbowroom.answers.exchanges import step_times
from elbowroom.capture.job_rank import JobRank
from elbowroom.capture.script import capture_script
from elbowroom.errors import CaptureError
from elbowroom.machine import Machine
from elbowroom.step.exchange_times import kind_of
from elbowroom.step.partners import with_partners
from elbowroom.trace import Trace

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(not dist.is_available(), reason="torch is built without torch.distributed"),
]

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "ranks" / "pipeline.py"
SMALL = ("--dim", "64", "--layers", "4", "--vocab", "100", "--seq", "32", "--micro-batches", "4")
H100 = Machine.of("h100-sxm")
BEGIN = """
import os
import torch
import torch.distributed as dist
from torch import nn

rank, local = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local)
dist.init_process_group("nccl")
"""
TRAINS = """
model = nn.Linear(64, 64).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(5):
    model(torch.randn(8, 64, device="cuda")).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def stage(rank: int, ranks: int, *words: str) -> Trace:
    return capture_script(SCRIPT, [*SMALL, *words], machine=H100, job=JobRank.of(rank, ranks))


def exchanges_of_last_step(trace: Trace) -> Counter[tuple[str, int]]:
    """Number of sends and receives by kind and bytes."""
    begins = trace.steps[-1].first_op
    found = ((kind_of(trace.ops[each.op].name), each.size_bytes) for each in trace.exchanges if each.op >= begins)
    return Counter(found)


def parameter_bytes(trace: Trace) -> int:
    return sum(each.size_bytes for each in trace.storages if each.category == "parameter")


# 1 x 32 rows of 64 float32 pass from stage to stage: 8,192 bytes
PASSED = 1 * 32 * 64 * 4
# a block has 2 norms of 64 and matrices of 64 x 64: 3 of qkv, 1 of wo, 9 of the network
BLOCK = (2 * 64 + 13 * 64 * 64) * 4
# the embedding of 100 tokens, and the head
TOKENS = 100 * 64 * 4


def test_a_stage_has_its_layers_and_receives_what_its_neighbours_send() -> None:
    # given 3 stages of 1 block each, and 4 micro-batches
    between = stage(1, 3, "--layers", "3", "--schedule", "1F1B")

    # then a stage between sends and receives 4 times to each side
    assert exchanges_of_last_step(between) == {("send", PASSED): 8, ("receive", PASSED): 8}
    assert parameter_bytes(between) == BLOCK
    assert any("waits until another one sends" in each.name for each in between.remarks)


def test_a_stage_whose_shapes_are_given_asks_for_none() -> None:
    asked, given = (stage(1, 2, "--schedule", "1F1B", *words) for words in ((), ("--static",)))

    # then both have 2 blocks and the head, and the shapes' own forward is missing where they are given
    assert (
        exchanges_of_last_step(given) == exchanges_of_last_step(asked) == {("send", PASSED): 4, ("receive", PASSED): 4}
    )
    assert parameter_bytes(given) == parameter_bytes(asked) == 2 * BLOCK + TOKENS
    assert given.steps[0].end_op < asked.steps[0].end_op


def test_stages_that_are_captured_together_wait_for_each_other() -> None:
    # given 2 stages of 2 blocks each
    alone = {rank: stage(rank, 2, "--schedule", "1F1B", "--static") for rank in (0, 1)}
    begins = {rank: trace.steps[-1].first_op for rank, trace in alone.items()}
    peers = [{each.peer for each in alone[rank].exchanges if each.op >= begins[rank]} for rank in (0, 1)]
    assert peers == [{1}, {0}]

    # when
    together = with_partners(alone)

    # then both take the same time for a step, waits included, and nothing is remarked of them
    times = [step_times(together[rank]) for rank in (0, 1)]
    assert times[0] is not None
    assert times[1] is not None
    assert times[0].step_ns == times[1].step_ns
    for rank in (0, 1):
        own = step_times(alone[rank])
        assert own is not None
        assert times[rank].wait_ns > own.wait_ns  # pyright: ignore[reportOptionalMemberAccess]
        assert not any("waits until another one sends" in each.name for each in together[rank].remarks)


@pytest.mark.parametrize(
    ("words", "sides"),
    [
        # rank 0 has stages 0 and 2 of 4: stage 0 has one neighbour elsewhere, stage 2 has two
        (("--schedule", "Interleaved1F1B", "--stages", "2"), 3),
        # rank 0 has stages 0 and 3, both next to one of rank 1
        (("--schedule", "ZBVZeroBubble", "--stages", "2"), 2),
        (
            (
                "--schedule",
                "GPipe",
            ),
            1,
        ),
    ],
)
def test_schedules_with_several_stages_on_a_rank_are_captured(words: tuple[str, ...], sides: int) -> None:
    trace = stage(0, 2, *words)

    assert exchanges_of_last_step(trace) == {("send", PASSED): 4 * sides, ("receive", PASSED): 4 * sides}
    assert len(trace.steps) == 3


def test_objects_and_a_few_whole_numbers_are_those_of_their_sender(tmp_path: Path) -> None:
    text = f"""{BEGIN}
found, numbers = [None, None], torch.zeros(2, dtype=torch.int64, device="cuda")
if rank == 5:
    dist.send_object_list([{{"rank": rank}}, "text"], dst=2)
    dist.send(torch.tensor([rank, 7], device="cuda"), dst=2)
if rank == 2:
    assert dist.recv_object_list(found, src=5) == 5
    dist.recv(numbers, src=5)
    assert found == [{{"rank": 5}}, "text"], found
    assert numbers.tolist() == [5, 7], numbers
{TRAINS}"""
    (tmp_path / "train.py").write_text(text)

    trace = capture_script(str(tmp_path / "train.py"), machine=H100, job=JobRank.of(2, 8))

    assert len(trace.steps) == 3


def test_a_rank_that_sends_after_its_first_step_goes_on_when_it_is_waited_for(tmp_path: Path) -> None:
    text = BEGIN + TRAINS.replace(
        "    optimizer.zero_grad()\n",
        """    optimizer.zero_grad()
    count = torch.tensor([_ + 40], device="cuda")
    if rank == 1:
        dist.send(count, dst=0)
    if rank == 0:
        count.zero_()
        dist.recv(count, src=1)
        assert count.item() == _ + 40
""",
    )
    (tmp_path / "train.py").write_text(text)

    trace = capture_script(str(tmp_path / "train.py"), machine=H100, job=JobRank.of(0, 2))

    assert len(trace.steps) == 3


def test_a_rank_that_ends_before_it_sends_is_named_with_its_reason(tmp_path: Path) -> None:
    text = f"{BEGIN}if rank == 1:\n    raise ValueError('no data')\ndist.recv_object_list([None], src=1)\n"
    (tmp_path / "train.py").write_text(text)

    with pytest.raises(CaptureError, match=r"(?s)rank 0 waits for what rank 1 sends, and .* no data.*--rank 1"):
        capture_script(str(tmp_path / "train.py"), machine=H100, job=JobRank.of(0, 2))

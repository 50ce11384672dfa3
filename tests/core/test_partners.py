"""Partners: stages of a pipeline wait for each other as the formulas of their schedules say, ranks for a slow one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import cast

import pytest

from elbowroom.answers.exchanges import StepTimes, step_times
from elbowroom.hardware.interconnects import Communicator
from elbowroom.simulate.simulate import simulate
from elbowroom.step.partners import WAITS, with_partners, with_stragglers
from elbowroom.trace import Exchange, Remark, Trace
from tests.core.build import machine
from tests.core.test_overlap import Job, reduced

FORWARD_NS, BACKWARD_NS, OPTIMIZER_NS = 100, 200, 50
Action = tuple[str, int, int]
"""What a rank does: "F" or "B", the number of its part of the model, the micro-batch."""


class Stage(Job):
    """A rank of a pipeline: each forward and backward receives, computes and sends."""

    def __init__(self, rank: int, ranks: int, parts: int) -> None:
        super().__init__()
        self.rank, self.ranks, self.parts = rank, ranks, parts

    def do(self, action: Action, take_ns: int) -> None:
        """Do an action; its input comes from the stage before, or in backward from the one after."""
        kind, part, _ = action
        stage, last = part * self.ranks + self.rank, self.parts * self.ranks - 1
        way = 1 if kind == "F" else -1
        came = self.storage(8, "input")
        if 0 <= stage - way <= last:
            self.message("c10d.recv", came, (stage - way) % self.ranks)
        made = cast("int", self.op("aten.mm", take_ns, reads=(came,), make=8))
        if 0 <= stage + way <= last:
            self.message("c10d.send", made, (stage + way) % self.ranks)

    def message(self, name: str, storage: int, peer: int) -> None:
        """Send to a rank or receive from it; that takes no time."""
        if peer != self.rank:
            self.exchanges.append(Exchange(self.position, 0, 8, peer))
            self.op(name, 0, reads=(storage,), writes=(storage,))


def gpipe(_rank: int, _ranks: int, _parts: int, batches: int) -> Iterator[Action]:
    """All forwards, then all backwards (Huang et al. 2019)."""
    yield from (("F", 0, n) for n in range(batches))
    yield from (("B", 0, n) for n in range(batches))


def one_forward_one_backward(rank: int, ranks: int, _parts: int, batches: int) -> Iterator[Action]:
    """As many forwards as stages follow, then one backward after each forward (Narayanan et al. 2019)."""
    before = min(batches, ranks - rank)
    yield from (("F", 0, n) for n in range(before))
    for n in range(batches):
        yield "B", 0, n
        if before + n < batches:
            yield "F", 0, before + n


def interleaved(rank: int, ranks: int, parts: int, batches: int) -> Iterator[Action]:
    """One forward, one backward over several parts of the model on each rank (Narayanan et al. 2021)."""
    order = [(part, n + k) for n in range(0, batches, ranks) for part in range(parts) for k in range(ranks)]
    backs = [(parts - 1 - part, n) for part, n in order]
    before = min(len(order), 2 * (ranks - rank - 1) + (parts - 1) * ranks + 1)
    yield from (("F", *each) for each in order[:before])
    for n, each in enumerate(backs):
        yield "B", *each
        if before + n < len(order):
            yield "F", *order[before + n]


def traces(schedule: object, ranks: int, parts: int, batches: int) -> dict[int, Trace]:
    """Return the traces of all ranks, as each is captured alone."""
    found: dict[int, Trace] = {}
    for rank in range(ranks):
        stage = Stage(rank, ranks, parts)
        for action in schedule(rank, ranks, parts, batches):  # type: ignore[operator]  # pyright: ignore[reportCallIssue, reportUnknownVariableType]
            stage.do(cast("Action", action), (FORWARD_NS if action[0] == "F" else BACKWARD_NS) // parts)
        stage.op("aten._fused_adam_", OPTIMIZER_NS)
        remark = Remark(kind="unsupported", name=WAITS, count=1)
        group = Communicator(ranks, ranks, ranks)
        found[rank] = replace(stage.of_job(), communicators=(group,), remarks=(remark,))
    return found


@pytest.mark.parametrize(
    ("schedule", "parts"),
    [(gpipe, 1), (one_forward_one_backward, 1), (interleaved, 1), (interleaved, 2), (interleaved, 4)],
)
@pytest.mark.parametrize(("ranks", "batches"), [(2, 2), (2, 8), (4, 4), (4, 8), (4, 32), (8, 16)])
def test_the_bubble_of_a_schedule_is_that_of_its_formula(
    schedule: object, parts: int, ranks: int, batches: int
) -> None:
    # when
    alone = traces(schedule, ranks, parts, batches)
    together = with_partners(alone)

    # then: (p - 1) (f + b) / v beside the m (f + b) of the batches (Narayanan et al. 2021, section 2.2)
    busy_ns = batches * (FORWARD_NS + BACKWARD_NS) + OPTIMIZER_NS
    bubble_ns = (ranks - 1) * (FORWARD_NS + BACKWARD_NS) // parts
    for rank, trace in together.items():
        line = simulate(trace, machine())
        assert (line.step_ns, line.busy_ns, line.wait_ns) == (busy_ns + bubble_ns, busy_ns, bubble_ns), rank
        # one rank alone has none, and says so
        assert simulate(alone[rank], machine()).step_ns == busy_ns
        assert ([each.name for each in alone[rank].remarks], trace.remarks) == ([WAITS], ())


def test_a_slow_stage_sets_the_pace_of_all() -> None:
    alone = traces(one_forward_one_backward, 4, 1, 32)
    slow = replace(
        alone[2],
        ops=tuple(replace(op, duration_ns=2 * op.duration_ns) if op.name == "aten.mm" else op for op in alone[2].ops),
    )

    together = with_partners({**alone, 2: slow})

    # the first batch comes through two stages, and the last goes back through them, 300 each; 32 take 600; it waits
    # for the stage after it once, until that has gone forward and back (300) where it went forward (200) meanwhile
    steps = {rank: simulate(trace, machine()).step_ns for rank, trace in together.items()}
    assert set(steps.values()) == {2 * 300 + 32 * 600 + 100 + OPTIMIZER_NS}
    waits = {rank: simulate(trace, machine()).wait_ns for rank, trace in together.items()}
    assert min(waits, key=lambda rank: waits[rank]) == 2


def test_a_stage_whose_neighbours_were_not_captured_waits_for_none_of_them_and_says_so() -> None:
    alone = traces(gpipe, 4, 1, 8)

    found = with_partners({1: alone[1], 3: alone[3]})

    assert {each.late_ns for trace in found.values() for each in trace.exchanges} == {0}
    assert [each.name for each in found[1].remarks] == [WAITS]
    # one of its two neighbours is not enough: the remark stays, and what that one sends is waited for
    found = with_partners({1: alone[1], 2: alone[2]})
    assert [each.name for each in found[1].remarks] == [WAITS]
    assert {each.peer for each in found[1].exchanges if each.late_ns} == {2}


def test_ranks_wait_for_the_slow_one_where_its_gradients_are_reduced() -> None:
    # two gradients of 100 ns each; the first is reduced in 30 ns beside the second; then 10 ns of an optimizer
    found = with_stragglers(reduced(30), {0: 1.0, 1: 1.0, 2: 1.5})

    times = [step_times(found[rank]) for rank in range(3)]
    # the slow one takes 150 + 150 + 15 and waits for nobody; the others take 210 and wait for the rest of it
    assert times == [StepTimes(315, 105), StepTimes(315, 105), StepTimes(315, 0)]


def test_equal_ranks_wait_for_nobody() -> None:
    found = with_stragglers(reduced(90), {0: 1.0, 1: 1.0})

    assert all(step_times(trace) == step_times(reduced(90)) for trace in found.values())

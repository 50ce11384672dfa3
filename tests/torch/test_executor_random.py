"""Any order of events: what is read is what was saved, and nothing is left when all handles are gone."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from elbowroom.engine.executor import Executor
from elbowroom.engine.saved_tensors import Handle
from elbowroom.errors import TierFailed
from tests.torch.moved_by_hand import HandTier, content, nothing_left, same, save

PICK = st.integers(0, 1000)


class AnyOrder(RuleBasedStateMachine):
    """Saves, ticks, ends of transfers, failures, reads and deaths of handles as they come."""

    def __init__(self) -> None:
        super().__init__()
        self.tier = HandTier(ends_when_waited_for=True)
        self.executor = Executor(self.tier)
        self.handles: list[Handle] = []
        self.tensors: list[tuple[int, torch.Tensor]] = []
        self.read_out: list[torch.UntypedStorage] = []
        self.count = 0

    def pick(self, items: list[Any], at: int) -> Any:
        return items[at % len(items)]

    @rule()
    def saves_a_new_storage(self) -> None:
        self.tensors.append((self.count, content(self.count)))
        self.handles.append(save(self.executor, self.tensors[-1][1], self.count))
        self.count += 1

    @precondition(lambda self: self.tensors)
    @rule(at=PICK)
    def saves_a_storage_again(self, at: int) -> None:
        n, tensor = self.pick(self.tensors, at)
        self.handles.append(save(self.executor, tensor, n))

    @precondition(lambda self: self.tensors)
    @rule(at=PICK)
    def the_training_drops_a_tensor(self, at: int) -> None:
        self.tensors.pop(at % len(self.tensors))

    @precondition(lambda self: self.handles)
    @rule(at=PICK)
    def a_handle_dies(self, at: int) -> None:
        self.handles.pop(at % len(self.handles))

    @rule(at=PICK, well=st.booleans())
    def a_transfer_ends(self, at: int, well: bool) -> None:
        running = [each for each in (*self.tier.writes, *self.tier.reads) if not each.done()]
        if running and (well or at % 4):
            self.pick(running, at).end()
        elif running:
            self.pick(running, at).fail(TierFailed("disk tier: it broke", tier="disk"))

    @rule(count=st.integers(0, 4))
    def a_tick_waits_for_writes(self, count: int) -> None:
        with suppress(TierFailed):
            self.executor.writes_done(count)

    @precondition(lambda self: self.handles)
    @rule(at=PICK, give_up=st.booleans())
    def a_tick_swaps_back(self, at: int, give_up: bool) -> None:
        entry = self.pick(self.handles, at).entry
        if give_up:
            self.executor.want(entry)
        self.executor.bring_back(entry)

    @precondition(lambda self: self.handles)
    @rule(at=PICK, hold=st.booleans())
    def reads_back(self, at: int, hold: bool) -> None:
        entry = self.pick(self.handles, at).entry
        try:
            storage = self.executor.read(entry)
        except TierFailed:
            return
        assert same(storage, entry)
        if hold:
            self.read_out.append(storage)

    @rule()
    def the_training_drops_what_it_read(self) -> None:
        self.read_out.clear()

    @rule()
    def a_step_begins(self) -> None:
        with suppress(TierFailed):
            self.executor.begin_step()

    def teardown(self) -> None:
        self.tensors.clear()
        self.read_out.clear()
        while self.executor._writes:
            with suppress(TierFailed):
                self.executor.settle()
        for at in range(len(self.handles)):
            self.reads_back(at, hold=False)
        self.handles.clear()
        assert nothing_left(self.executor)


AnyOrder.TestCase.settings = settings(max_examples=100, stateful_step_count=30)
TestAnyOrder = AnyOrder.TestCase

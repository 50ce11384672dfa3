"""Ops that get no memory run again, once something has left: the same numbers, in forward, backward and optimizers."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, final

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import elbowroom as er
from elbowroom.engine.entries import Entry
from elbowroom.engine.executor import Executor
from elbowroom.engine.full_device import asked_bytes
from elbowroom.engine.op_retries import OpRetries
from elbowroom.engine.residence import RamResidence
from elbowroom.planners import Means
from elbowroom.run.making_room import MakingRoom
from elbowroom.torch_compat.op_calls import watcher_of_results
from tests.torch.helpers import Training, assert_equal, ordinary, same_bits, train, train_within
from tests.torch.streams_by_hand import HandStreams, host_tier

REFUSED = "CUDA out of memory. Tried to allocate 2.00 MiB. GPU 0 has a total capacity of 80.00 GiB"


@final
class Refuses(TorchDispatchMode):
    """Device that refuses memory to the ops of these names, so many times each, or at random."""

    def __init__(self, name: str = "", times: int = 1, share: float = 0.0, *, late: bool = False) -> None:
        super().__init__()
        self._name, self.left, self.share, self._late = name, times, share, late
        self._random = random.Random(0)
        self.refused = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        of_name = self.left > 0 and func.overloadpacket.__name__ == self._name
        takes = all(each.alias_info is None for each in (*func._schema.arguments, *func._schema.returns))
        takes = takes and watcher_of_results().on  # what elbowroom does by itself is not watched
        if of_name or (takes and self._random.random() < self.share):
            if self._late:  # as an op that has drawn before it asks
                func(*args, **(kwargs or {}))
            self.left -= 1
            self.refused += 1
            raise torch.OutOfMemoryError(REFUSED)
        return func(*args, **(kwargs or {}))


@pytest.fixture(autouse=True)
def _refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    """RAM that says when it has no room, in the words of a CUDA device."""
    monkeypatch.setattr(RamResidence, "refuses", True)
    monkeypatch.setattr(RamResidence, "asked_bytes", lambda _, problem: asked_bytes(problem))


@contextmanager
def retried(makes_room: bool = True) -> Iterator[list[int]]:
    """Context in which ops run again; yields the bytes that were asked for each time."""
    asked: list[int] = []

    def make_room(size_bytes: int) -> bool:
        asked.append(size_bytes)
        return makes_room

    executor = Executor(host_tier(HandStreams()))
    executor.make_room = make_room
    retries = OpRetries(executor)
    retries.turn(on=True)
    try:
        yield asked
    finally:
        retries.turn(on=False)


def step(net: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    torch.manual_seed(1)
    loss = net(x).square().sum()
    loss.backward()
    return [loss.detach(), *(p.grad for p in net.parameters() if p.grad is not None)]


def dropping() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 32), nn.Dropout(0.4), nn.ReLU(), nn.Linear(32, 4))


@pytest.mark.parametrize("name", ["addmm", "mm", "threshold_backward", "sum"])
def test_an_op_that_is_refused_memory_gives_the_same_numbers(name: str) -> None:
    x = torch.randn(8, 16, generator=torch.Generator().manual_seed(2))
    expected = step(dropping(), x)
    net = dropping()

    with Refuses(name, times=2), retried() as asked:
        found = step(net, x)

    assert all(map(same_bits, found, expected))
    assert asked == [2 << 20, 2 << 20]


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize(
    ("name", "draw"),
    [
        ("bernoulli", lambda generator: torch.bernoulli(torch.full((64,), 0.5), generator=generator)),
        ("multinomial", lambda generator: torch.multinomial(torch.ones(64), 32, generator=generator)),
        ("randn", lambda generator: torch.randn(64, generator=generator)),
    ],
)
def test_an_op_that_has_drawn_draws_the_same_again(name: str, draw: Callable[[Any], torch.Tensor], own: bool) -> None:
    generator = torch.Generator() if own else None
    seed = generator.manual_seed if generator else torch.manual_seed
    seed(3)
    expected = [draw(generator), draw(generator)]
    seed(3)

    with Refuses(name, times=2, late=True) as device, retried():
        found = [draw(generator), draw(generator)]

    assert device.refused == 2
    assert all(map(torch.equal, found, expected))


def test_every_op_may_be_refused_now_and_then() -> None:
    x = torch.randn(8, 16, generator=torch.Generator().manual_seed(2))
    expected = step(dropping(), x)

    with Refuses(share=0.6) as device, retried() as asked:
        found = step(dropping(), x)

    assert all(map(same_bits, found, expected))
    assert len(asked) == device.refused > 5


def test_an_error_stays_one_if_nothing_leaves() -> None:
    with (
        Refuses("mm"),
        retried(makes_room=False) as asked,
        pytest.raises(torch.OutOfMemoryError, match=r"2\.00 MiB"),
    ):
        torch.mm(torch.ones(4, 4), torch.ones(4, 4))

    assert asked == [2 << 20]


def test_an_op_that_writes_to_its_arguments_does_not_run_again() -> None:
    x = torch.ones(4)

    with Refuses("add_"), retried() as asked, pytest.raises(torch.OutOfMemoryError):
        x.add_(1)

    assert asked == []


def test_another_error_passes() -> None:
    with retried() as asked, pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        torch.mm(torch.ones(4, 4), torch.ones(3, 4))

    assert asked == []


def test_modules_can_be_made_meanwhile() -> None:
    with retried():
        net = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
        again = nn.Parameter(torch.ones(3).detach())

    assert {type(each) for each in (again, *net.parameters())} == {nn.Parameter}


def test_another_thread_goes_on_when_it_ends() -> None:
    # given a graph whose backward began while ops were watched
    begun, ended, found = threading.Event(), threading.Event(), list[torch.Tensor]()

    class Waits(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, *grads: torch.Tensor) -> torch.Tensor:
            begun.set()
            assert ended.wait(30)
            return grads[0] * 2

    x = torch.ones(3, requires_grad=True)

    def runs() -> None:
        retries.turn(on=True)
        Waits.apply(x).sum().backward()
        assert x.grad is not None
        found.append(x.grad)

    retries = OpRetries(Executor(host_tier(HandStreams())))
    thread = threading.Thread(target=runs)
    thread.start()
    assert begun.wait(30)
    # when another thread ends it: that one cannot, as it is not its own
    retries.turn(on=False)
    ended.set()
    thread.join()
    # then
    assert torch.equal(found[0], torch.full((3,), 2.0))


@pytest.mark.filterwarnings("ignore:elbowroom. memory ran out")
@pytest.mark.parametrize("budget", [1 << 30, 3_900_000])
@pytest.mark.parametrize("allow", [("swap",), ("swap", "state"), ("swap", "state", "gradient"), ("swap", "recompute")])
def test_a_training_whose_ops_are_refused_memory_is_the_same(
    budget: int, allow: tuple[Means, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    # given a device on which something leaves each time
    monkeypatch.setattr(MakingRoom, "_is_unsure", lambda *_: True)
    monkeypatch.setattr(MakingRoom, "_is_tight", lambda *_: True)
    left: list[bool] = []
    make = MakingRoom.make

    def made(self: MakingRoom, size_bytes: int, *, in_optimizer: bool) -> bool:
        left.append(make(self, size_bytes, in_optimizer=in_optimizer))
        return True

    monkeypatch.setattr(MakingRoom, "make", made)

    def setup(device: Refuses) -> Training:
        net = nn.Sequential(nn.Linear(64, 256), nn.Tanh(), nn.Dropout(0.2), nn.Linear(256, 256), nn.GELU())
        made = ordinary(net, torch.randn(256, 64))

        def step(number: int) -> torch.Tensor:
            device.share = 0.1 if number >= 3 else 0.0
            return made.step(number)

        return Training(step, made.modules, made.optimizers)

    expected = train(lambda: setup(Refuses()), 8)

    # when
    with Refuses() as device:
        found, room = train_within(lambda: setup(device), 8, budget, allow=allow)

    # then
    assert device.refused == len(left) > 10
    assert any(left)
    assert_equal(found, expected)
    assert sum(each.mismatches for each in room.steps) > 0


@pytest.mark.parametrize("allow", [("swap", "state"), ("swap", "state", "gradient")])
def test_swaps_back_that_find_no_memory_before_they_are_needed_are_put_off(
    allow: tuple[Means, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    # given a device that refuses every second one of the swaps back that a plan wants early
    early, bring_back = Executor.bring_back_early, Executor._bring_back  # pyright: ignore[reportPrivateUsage]
    put_off: list[bool] = []
    is_early = False

    def bring_back_early(self: Executor, entry: Entry) -> bool:
        nonlocal is_early
        is_early = True
        try:
            put_off.append(not early(self, entry))
        finally:
            is_early = False
        return not put_off[-1]

    def refused(self: Executor, entry: Entry) -> None:
        if is_early and len(put_off) % 2:
            raise torch.OutOfMemoryError(REFUSED)
        bring_back(self, entry)

    monkeypatch.setattr(Executor, "bring_back_early", bring_back_early)
    monkeypatch.setattr(Executor, "_bring_back", refused)

    def setup() -> Training:
        net = nn.Sequential(nn.Linear(64, 256), nn.Tanh(), nn.Linear(256, 256), nn.GELU(), nn.Linear(256, 256))
        return ordinary(net, torch.randn(256, 64))

    # when
    expected = train(setup, 8)
    found, room = train_within(setup, 8, 4_900_000, allow=allow)
    # then
    assert any(put_off)
    assert_equal(found, expected)
    assert not any(each.mismatches for each in room.steps)


def test_errors_that_a_script_catches_and_goes_on_after_are_counted_in_the_summary() -> None:
    # given a loop that prints what went wrong with a batch, and takes the next one
    torch.manual_seed(0)
    net, x = dropping(), torch.linspace(-1, 1, 64 * 16).view(64, 16)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    caught: list[str] = []
    with er.within(1 << 40) as room:
        for number in range(4):
            try:
                with Refuses("relu", times=1000) if number < 2 else nullcontext():
                    net(x).square().sum().backward()
                optimizer.step()
            except torch.OutOfMemoryError as problem:
                caught.append(str(problem))
    # then
    assert caught == [REFUSED] * 2
    assert len(room.steps) == 2
    assert "MEMORY WAS REFUSED to 2 ops, and the script went on" in room.summary()


@pytest.mark.parametrize("makes_room", [True, False])
def test_work_that_finds_room_at_last_is_not_counted_as_refused(makes_room: bool) -> None:
    errors: Iterator[Exception | None] = iter([torch.OutOfMemoryError(REFUSED), None])

    def work() -> int:
        if (error := next(errors)) is not None:
            raise error
        return 7

    executor = Executor(host_tier(HandStreams()))
    executor.make_room = lambda _: makes_room

    with nullcontext() if makes_room else pytest.raises(torch.OutOfMemoryError):
        assert executor.with_room(work) == 7

    assert executor.refused == (0 if makes_room else 1)

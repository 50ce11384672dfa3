"""Forwards without gradients that are noted again and not run: the trace is the one of running them all."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn

from elbowroom.capture.virtual import VirtualDevice
from elbowroom.capture.virtual.host_values import repeats
from elbowroom.machine import Machine
from elbowroom.torch_compat.core import storage_key
from elbowroom.trace import Trace

PASSES = 6
SIZE = 1024
CALLS: list[bool] = []
"""Whether gradients were on, for each forward that ran."""


class Plain(nn.Module):
    """Its weights are too large for their values to be known."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(SIZE, SIZE)
        self.drop = nn.Dropout(0.1)
        self.last = nn.Linear(SIZE, 64)

    def hidden(self, x: torch.Tensor) -> torch.Tensor:
        CALLS.append(torch.is_grad_enabled())
        return torch.relu(self.first(x))

    def forward(self, x: torch.Tensor) -> Any:
        return self.last(self.drop(self.hidden(x)))


class Several(Plain):
    def forward(self, x: torch.Tensor) -> Any:
        hidden = self.hidden(x)
        out = self.last(hidden)
        return {"all": (out, out[:, :2]), "loss": out.float().mean(), "rows": len(x), "none": None}


class Asks(Plain):
    def forward(self, x: torch.Tensor) -> Any:
        hidden = self.hidden(x)
        return self.last(hidden) if bool(hidden.sum() > 0) else self.last(hidden[:1])


class Keeps(Plain):
    def forward(self, x: torch.Tensor) -> Any:
        self.seen = self.hidden(x)
        return self.last(self.seen)


class Hashed(Plain):
    """As torchmetrics has it: its hash follows its state, and what it is compared with is a metric again."""

    calls = 0

    def forward(self, x: torch.Tensor) -> Any:
        self.calls += 1
        return self.last(self.hidden(x))

    def __hash__(self) -> int:
        return self.calls

    def __eq__(self, _: object) -> Any:
        return self


class Counts(Plain):
    calls = 0

    def forward(self, x: torch.Tensor) -> Any:
        self.calls += 1
        return self.last(self.hidden(x) if self.calls % 2 else self.hidden(x)[:1])


class Draws(Plain):
    def forward(self, x: torch.Tensor) -> Any:
        return self.last(self.hidden(x) if torch.rand(()) > 0.5 else self.hidden(x)[:1])


class Writes(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.total = nn.Buffer(torch.zeros(SIZE))

    def forward(self, x: torch.Tensor) -> Any:
        hidden = self.hidden(x)
        self.total.add_(hidden.mean(0))
        return self.last(hidden)


class Normed(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(SIZE)

    def forward(self, x: torch.Tensor) -> Any:
        return self.last(self.norm(self.hidden(x)))


class Masked(Plain):
    """Asks for what it is told by its mask and by a buffer: how many rows count."""

    def __init__(self) -> None:
        super().__init__()
        self.most = nn.Buffer(torch.tensor(8))

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> Any:
        counted = torch.zeros_like(mask)
        counted.copy_(mask)
        counted[:1] = True
        hidden = self.hidden(x)
        if counted.all():
            return self.last(hidden)
        return self.last(hidden[: min(int(counted.sum()), int(self.most))])


class DrawsThere(Plain):
    """Asks for what was drawn on the device."""

    def forward(self, x: torch.Tensor) -> Any:
        hidden = self.hidden(x)
        return self.last(hidden if torch.rand((), device="cuda") > 0.5 else hidden[:1])


@dataclass
class Outcome:
    trace: Trace
    repeated: int
    calls: int


def trained(
    kind: Callable[[], Plain],
    *,
    autocast: bool = False,
    training: bool = False,
    hooked: bool = False,
    rows: Callable[[int], int] = lambda _: 8,
    mask: Callable[[int], list[bool]] | None = None,
    most: Callable[[int], int] = lambda _: 8,
) -> Outcome:
    """Evaluate, train a step, evaluate again, train another step."""

    def masks(i: int) -> tuple[torch.Tensor, ...]:
        return () if mask is None else (torch.tensor(mask(i)).to("cuda"),)

    torch.manual_seed(0)
    CALLS.clear()
    with VirtualDevice(Machine.of("a100-80gb"), 2) as device:
        model = kind().to("cuda")
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        if hooked:
            model.first.register_forward_hook(lambda *_: None)
        for _ in range(2):
            model.train(training)
            for i in range(PASSES):
                x = torch.empty(rows(i), SIZE).to("cuda")
                if isinstance(model, Masked):
                    model.most.fill_(most(i))
                with torch.no_grad(), torch.autocast("cuda", torch.bfloat16) if autocast else nullcontext():
                    model(x, *masks(i))
            model.train()
            found = model(torch.empty(8, SIZE).to("cuda"), *masks(0))
            (found["loss"] if isinstance(found, dict) else found.sum()).backward()
            optimizer.step()
            optimizer.zero_grad()
    return Outcome(device.trace(), device.repeats.repeated, CALLS.count(False))


@pytest.fixture
def without(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Trace]:
    """The trace where every pass runs."""

    def run(*args: Any, **options: Any) -> Trace:
        def unfit(*_: object) -> None:
            raise repeats.Unfit

        with monkeypatch.context() as patch:
            patch.setattr(repeats.Repeats, "_key", unfit)
            outcome = trained(*args, **options)
        assert outcome.repeated == 0
        return outcome.trace

    return run


@pytest.mark.parametrize("kind", [Plain, Several, Normed])
@pytest.mark.parametrize("autocast", [False, True])
def test_passes_that_are_alike_run_a_few_times_and_the_trace_is_the_same(
    kind: Callable[[], Plain], autocast: bool, without: Callable[..., Trace]
) -> None:
    found = trained(kind, autocast=autocast)

    # of 12 passes the first leaves cuBLAS's workspace and is none to repeat; two prove each other
    assert found.repeated >= PASSES
    assert found.calls == 2 * PASSES - found.repeated
    assert found.trace == without(kind, autocast=autocast)


def test_each_shape_is_captured_for_itself(without: Callable[..., Trace]) -> None:
    shapes: Callable[[int], int] = lambda i: 8 + i % 2  # noqa: E731

    found = trained(Plain, rows=shapes)

    assert found.repeated >= PASSES - 1
    assert found.trace == without(Plain, rows=shapes)


@pytest.mark.parametrize(
    ("mask", "most"),
    [
        (lambda i: [True] * 3 + [row == i for row in range(5)], lambda _: 8),  # other masks, of which each counts 4
        (lambda i: [True] * (4 + i % 2) + [False] * (4 - i % 2), lambda _: 8),  # 4 and 5 in turn
        (lambda _: [True] * 7 + [False], lambda i: 2 + i % 2),  # the buffer says 2 and 3 in turn
    ],
)
def test_a_pass_that_asked_what_has_the_same_answer_is_repeated(
    mask: Callable[[int], list[bool]], most: Callable[[int], int], without: Callable[..., Trace]
) -> None:
    found = trained(Masked, mask=mask, most=most)

    assert found.repeated >= PASSES
    assert found.calls == 2 * PASSES - found.repeated
    assert found.trace == without(Masked, mask=mask, most=most)


def test_a_pass_whose_answers_are_new_is_run(without: Callable[..., Trace]) -> None:
    def mask(i: int) -> list[bool]:
        return [row <= i for row in range(8)]

    def most(i: int) -> int:
        return 1 + i

    found = trained(Masked, mask=mask, most=most)

    assert found.calls >= PASSES
    assert found.trace == without(Masked, mask=mask, most=most)


@pytest.mark.parametrize("kind", [Asks, DrawsThere, Keeps, Counts, Draws, Writes])
def test_a_pass_that_does_more_than_its_results_is_run_each_time(kind: Callable[[], Plain]) -> None:
    found = trained(kind)

    assert (found.repeated, found.calls) == (0, 2 * PASSES)


def test_a_module_whose_hash_changes_is_told_by_itself() -> None:
    found = trained(Hashed)

    assert found.repeated + found.calls == 2 * PASSES


@pytest.mark.parametrize("options", [{"training": True}, {"hooked": True}])
def test_a_pass_in_training_mode_or_with_hooks_is_run_each_time(options: dict[str, Any]) -> None:
    found = trained(Normed, **options)

    assert (found.repeated, found.calls) == (0, 2 * PASSES)


def test_results_of_a_repeated_pass_are_new_tensors_of_the_same_form() -> None:
    with VirtualDevice(Machine.of("a100-80gb"), 2) as device:
        model = Several().to("cuda").eval()
        with torch.no_grad():
            made = [model(torch.empty(8, SIZE).to("cuda")) for _ in range(5)]
    assert device.repeats.repeated == 2
    first, last = made[0], made[-1]
    assert list(first) == list(last)
    for one, other in zip((*first["all"], first["loss"]), (*last["all"], last["loss"]), strict=True):
        assert (one.shape, one.stride(), one.dtype, one.device) == (
            other.shape,
            other.stride(),
            other.dtype,
            other.device,
        )
    out, part = last["all"]
    assert storage_key(out.untyped_storage()) == storage_key(part.untyped_storage())
    assert (last["rows"], last["none"]) == (8, None)

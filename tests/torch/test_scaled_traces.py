"""Scaled traces: what a step of sizes that were never met holds, compared with what such a step is captured to hold."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from torch import Tensor, nn

from elbowroom.machine import Machine
from elbowroom.planners.budget.run_budget import keeping_bytes
from elbowroom.run.scaled_traces import MOST_SCALED, Sized, scaled
from elbowroom.trace import Trace
from tests.torch.helpers import MIN_SIZE_BYTES, Training, by_loss, captured, mean_square
from tests.torch.words import Words

TEXTS = 8


@cache
def of_length(length: int, blocks: int = 2) -> Trace:
    """A step of a language model: its attention saves the square of a length."""

    def texts() -> Training:
        model = Words(32, 32, 64, blocks=blocks, dropout=0.1, is_causal=True)

        def loss(_: int) -> Tensor:
            tokens = torch.arange(TEXTS * length).view(TEXTS, -1) % 32
            return nn.functional.cross_entropy(model(tokens), tokens.flatten())

        return by_loss(loss, model, torch.optim.AdamW(model.parameters()))

    return captured(texts)


def sized(length: int) -> Sized:
    return Sized((TEXTS, length), of_length(length))


def saved(trace: Trace) -> list[int]:
    return [trace.storages[save.storage].size_bytes for save in trace.saves]


@pytest.mark.parametrize("length", [44, 96])
def test_a_scaled_step_saves_what_a_step_of_that_length_saves_and_holds_no_less(length: int) -> None:
    # given recorded steps of two lengths
    near, other = sized(56), sized(64)

    # when the first one is scaled to another length
    found = scaled((TEXTS, length), near, other, MIN_SIZE_BYTES)

    # then
    real = of_length(length)
    assert found is not None
    assert all(mine >= theirs for mine, theirs in zip(saved(found), saved(real), strict=True))
    assert sum(saved(found)) <= 1.02 * sum(saved(real))
    here = Machine.here(device="cpu")
    assert keeping_bytes(found, here) >= keeping_bytes(real, here) - 4096  # what Python's own objects take


def test_steps_that_run_other_ops_are_not_scaled() -> None:
    other = Sized((TEXTS, 64), of_length(64, blocks=3))

    assert scaled((TEXTS, 80), sized(56), other, MIN_SIZE_BYTES) is None


def test_a_step_is_not_scaled_if_a_storage_would_be_seen_that_was_not_seen_before() -> None:
    near, other = sized(56), sized(64)
    activations = [s.size_bytes for s in near.trace.storages if s.category == "activation" and s.size_bytes > 4096]
    least_bytes = min(activations) + 1

    assert scaled((TEXTS, 80), near, other, least_bytes) is None


def test_a_step_is_scaled_up_to_a_limit() -> None:
    assert scaled((TEXTS, 56 * MOST_SCALED + 1), sized(56), sized(64), MIN_SIZE_BYTES) is None


def test_what_does_not_change_with_the_inputs_stays() -> None:
    # given a step with a table of its own that is as large for all batches
    def of_rows(rows: int) -> Sized:
        def batch() -> Training:
            layer = nn.Linear(64, 64)

            def step(_: int) -> Tensor:
                table = torch.linspace(0, 1, 64 * 64).view(64, 64).sin() * layer.weight
                return mean_square(layer(torch.ones(rows, 64)) @ table.exp())

            return by_loss(step, layer, torch.optim.SGD(layer.parameters(), lr=0.1))

        return Sized((rows, 64), captured(batch))

    found = scaled((400, 64), of_rows(100), of_rows(120), MIN_SIZE_BYTES)

    assert found is not None
    assert saved(found) == saved(of_rows(400).trace)

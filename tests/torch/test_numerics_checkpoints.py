"""torch.utils.checkpoint of the user inside a room, both variants and their options: no number changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential, set_checkpoint_early_stop

from tests.torch.helpers import assert_same_within, mlp, ordinary

ROWS, WIDTH = 512, 64
Forward = Callable[[nn.ModuleList, Tensor], Tensor]
BOTH = pytest.mark.parametrize("reentrant", [True, False], ids=["reentrant", "not reentrant"])


class Calls(nn.Module):
    """Four blocks, called as a test says."""

    def __init__(self, forward: Forward) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([mlp(depth=3) for _ in range(4)])
        self._forward = forward

    def forward(self, x: Tensor) -> Tensor:
        return self._forward(self.blocks, x)


def same(forward: Forward) -> None:
    """A training that calls its blocks so has the same numbers within a budget."""
    # an input with a gradient, without which the reentrant variant makes no graph
    assert_same_within(lambda: ordinary(Calls(forward), torch.randn(ROWS, WIDTH, requires_grad=True)))


@BOTH
def test_outputs_that_are_no_tensors_pass_through(reentrant: bool) -> None:
    def block(layer: nn.Module, x: Tensor) -> tuple[Tensor, int, None, str]:
        return layer(x), x.shape[0], None, "rows"

    def forward(blocks: nn.ModuleList, x: Tensor) -> Tensor:
        for layer in blocks:
            found, rows, nothing, name = checkpoint(block, layer, x, use_reentrant=reentrant)
            assert (rows, nothing, name) == (ROWS, None, "rows")
            x = x.sin() * found
        return x

    same(forward)


def test_nested_containers_and_keywords_pass_through() -> None:
    def block(layer: nn.Module, given: dict[str, Any], *, scale: float, more: tuple[Tensor, list[Tensor]]) -> Any:
        return {"out": (layer(given["x"]) * scale, [more[0].cos() * more[1][0]])}

    def forward(blocks: nn.ModuleList, x: Tensor) -> Tensor:
        for layer in blocks:
            more = (x, [x.sin()])
            found = checkpoint(block, layer, {"x": x.exp()}, scale=0.5, more=more, use_reentrant=False)
            x = x.cos() * found["out"][0] + found["out"][1][0].sin()
        return x

    same(forward)


@BOTH
@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad=True:UserWarning")  # of those inside
def test_checkpoints_within_checkpoints_change_no_number(reentrant: bool) -> None:
    def inner(layer: nn.Module, x: Tensor) -> Tensor:
        return x.sin() * layer(x)

    def outer(one: nn.Module, other: nn.Module, x: Tensor) -> Tensor:
        x = checkpoint(inner, one, x.cos(), use_reentrant=reentrant)
        return checkpoint(inner, other, x.cos(), use_reentrant=reentrant)

    def forward(blocks: nn.ModuleList, x: Tensor) -> Tensor:
        for one, other in ((blocks[0], blocks[1]), (blocks[2], blocks[3])):
            x = x.exp() * checkpoint(outer, one, other, x, use_reentrant=reentrant)
        return x

    same(forward)


@pytest.mark.parametrize("early", [True, False], ids=["stops early", "runs to the end"])
def test_a_recomputation_that_stops_early_or_not_changes_no_number(early: bool) -> None:
    def forward(blocks: nn.ModuleList, x: Tensor) -> Tensor:
        with set_checkpoint_early_stop(early):
            for layer in blocks:
                x = x.sin() * checkpoint(lambda y, f=layer: f(y).cos().detach() + f(y), x, use_reentrant=False)
        return x

    same(forward)


@BOTH
@pytest.mark.parametrize("preserve", [True, False], ids=["its random numbers", "others"])
def test_random_numbers_are_those_of_plain_training(reentrant: bool, preserve: bool) -> None:
    def forward(blocks: nn.ModuleList, x: Tensor) -> Tensor:
        for layer in blocks:
            found: Any = checkpoint(
                lambda y, f=layer: nn.functional.dropout(f(y), 0.3),
                x.exp(),
                use_reentrant=reentrant,
                preserve_rng_state=preserve,
            )
            x = x.cos() + found
        return x

    same(forward)


@pytest.mark.parametrize("check", ["default", "none"])
def test_what_is_recomputed_is_compared_as_it_was_saved(check: str) -> None:
    def forward(blocks: nn.ModuleList, x: Tensor) -> Tensor:
        for layer in blocks:
            x = x.cos() + checkpoint(layer, x.sin() * x, use_reentrant=False, determinism_check=check)
        return x

    same(forward)


@BOTH
def test_a_sequence_in_segments_changes_no_number(reentrant: bool) -> None:
    def forward(blocks: nn.ModuleList, x: Tensor) -> Tensor:
        return checkpoint_sequential(list(blocks), 2, x.exp() * x, use_reentrant=reentrant).sin() * x

    same(forward)

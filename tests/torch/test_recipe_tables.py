"""The tables of recipes against torch itself: which ops are random, and that statistics do not matter in training."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F

from elbowroom.capture import capture
from elbowroom.step.last_step import last_step
from elbowroom.step.recipes import options
from elbowroom.step.recipes.tables import RANDOM, REFUSED, STATISTICS
from elbowroom.torch_compat.core import has_kernel, schemas_of

NOT_IN_FORWARD = ("backward", "mps", "functional", "_out", "triton")
NO_TENSOR = {"_fused_sdp_choice", "_nested_tensor_softmax_with_shape", "_fill_mem_eff_dropout_mask_"}


def random_in_torch() -> set[str]:
    """Names of ops with a kernel of their own that torch tags as drawing from a generator."""
    found: set[str] = set()
    for name in dir(torch.ops.aten):
        packet = getattr(torch.ops.aten, name)
        overloads = getattr(packet, "overloads", list[str])()
        if any(torch.Tag.nondeterministic_seeded in getattr(packet, overload).tags for overload in overloads):
            found.add(name)
    return found


def test_every_op_that_torch_tags_as_random_is_known_as_such() -> None:
    # given torch's ops that draw from a generator, but for those of backward, of other devices and composite ones
    names = {name for name in random_in_torch() if not any(part in name for part in NOT_IN_FORWARD)} - NO_TENSOR
    own = {
        name
        for name in names
        if any(not has_kernel(schema, "CompositeImplicitAutograd") for schema in schemas_of(f"aten::{name}"))
    }

    # then each is replayed with its state, or refused
    assert len(own) > 20
    missing = {name for name in own if f"aten.{name}" not in RANDOM and f"aten.{name}" not in REFUSED}
    assert missing <= {"_flash_attention_forward_no_dropout_inplace"}  # writes in place what it is given


@pytest.mark.parametrize("name", sorted(STATISTICS & {"aten.native_batch_norm", "aten._native_batch_norm_legit"}))
def test_results_of_a_batch_norm_in_training_do_not_depend_on_its_running_statistics(name: str) -> None:
    op: Any = getattr(torch.ops.aten, name.removeprefix("aten.")).default
    x, weight, bias = torch.randn(8, 4, 5, 5), torch.randn(4), torch.randn(4)
    results = [
        op(x, weight, bias, torch.full((4,), at), torch.full((4,), at + 1), True, 0.1, 1e-5) for at in (0.0, 7.0)
    ]
    for first, second in zip(*results, strict=True):
        assert torch.equal(first, second)


def test_a_dropout_mask_is_drawn_again_from_the_state_that_the_generator_had() -> None:
    state = torch.get_rng_state()
    first = F.dropout(torch.ones(1000))
    torch.rand(17)
    torch.set_rng_state(state)
    assert torch.equal(first, F.dropout(torch.ones(1000)))


def block_net() -> Callable[[], None]:
    net = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(inplace=True),
        nn.Dropout(0.2),
        nn.Flatten(),
        nn.Linear(8 * 32 * 32, 4),
    )
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    x, y = torch.randn(8, 3, 32, 32), torch.randint(0, 4, (8,))

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(net(x), y).backward()
        optimizer.step()

    return step


@pytest.mark.parametrize("machine", ["here", "a100-80gb"])
def test_a_captured_net_offers_its_norm_activation_and_mask(machine: str) -> None:
    # given conv, norm, relu in place, dropout, saved as conv's result, relu's and the mask; on the GPU bool, here float
    setup = block_net if machine == "here" else lambda: on_gpu(block_net)
    step = last_step(capture(setup, machine=machine, steps=2, min_size=2**14))
    singles = {o.name: [step.trace.ops[i].name for i in o.recompute.recipe] for o in options(step, 2**14)}

    # then the convolution, the norm with its activation, and the mask can each be made again
    norm = "aten.native_batch_norm" if machine == "here" else "aten.cudnn_batch_norm"
    assert singles["Sequential.0"] == ["aten.convolution"]
    assert singles["Sequential.1"] == [norm, "aten.relu_"]


def on_gpu(setup: Callable[[], Callable[[], None]]) -> Callable[[], None]:
    with torch.device("cuda"):
        return setup()

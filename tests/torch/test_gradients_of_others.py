"""Optimizers that step in turn: a step holds no gradients or states of other nets that its budget has no room for."""

from __future__ import annotations

import gc
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from elbowroom.capture.recording.recorder import live_ram_bytes
from elbowroom.run.room import run_of
from tests.torch.helpers import MIN_SIZE_BYTES, Training, assert_equal, train, train_within

WIDTH, DEPTH, ROWS = 512, 6, 8
WEIGHT_BYTES = 4 * WIDTH * WIDTH
NET_BYTES = DEPTH * WEIGHT_BYTES
"""Weights of one net, without biases: so many bytes its gradients take too, and each of Adam's two states."""
STEPS = 16


def net() -> nn.Sequential:
    layers = (each for _ in range(DEPTH) for each in (nn.Linear(WIDTH, WIDTH, bias=False), nn.Tanh()))
    return nn.Sequential(*layers)


class Nets:
    """A generator and a discriminator, with an optimizer each, and one batch."""

    def __init__(self) -> None:
        self.makes, self.judges = net(), net()
        self.of_makes, self.of_judges = (torch.optim.Adam(each.parameters()) for each in (self.makes, self.judges))
        self.real, self.noise = torch.randn(ROWS, WIDTH), torch.randn(ROWS, WIDTH)

    def judge_loss(self, made: Tensor) -> Tensor:
        return (self.judges(self.real) - 1).square().mean() + self.judges(made.detach()).square().mean()

    def make_loss(self, made: Tensor) -> Tensor:
        return (self.judges(made) - 1).square().mean()


def judged(nets: Nets) -> tuple[Tensor, Tensor]:
    """Train the discriminator; return what the generator made, and the loss."""
    made = nets.makes(nets.noise)
    loss = nets.judge_loss(made)
    nets.of_judges.zero_grad()
    loss.backward()
    nets.of_judges.step()
    return made, loss


def made_better(nets: Nets, made: Tensor) -> Tensor:
    """Train the generator; return the loss."""
    loss = nets.make_loss(made)
    nets.of_makes.zero_grad()
    loss.backward()
    nets.of_makes.step()
    return loss


def zeroed_before_backward(nets: Nets) -> Tensor:
    """The backward pass of the generator adds to gradients of the discriminator, which it then drops."""
    made, loss = judged(nets)
    return torch.stack([loss, made_better(nets, made)])


def frozen(nets: Nets) -> Tensor:
    """The discriminator has no gradients while the generator trains."""
    made, loss = judged(nets)
    nets.judges.requires_grad_(False)
    other = made_better(nets, made)
    nets.judges.requires_grad_(True)
    return torch.stack([loss, other])


def generator_first(nets: Nets) -> Tensor:
    """Both zero before their forward pass, the generator steps first."""
    nets.of_makes.zero_grad()
    made = nets.makes(nets.noise)
    other = nets.make_loss(made)
    other.backward()
    nets.of_makes.step()
    nets.of_judges.zero_grad()
    loss = nets.judge_loss(made)
    loss.backward()
    nets.of_judges.step()
    return torch.stack([loss, other])


LOOPS: list[Callable[[Nets], Tensor]] = [zeroed_before_backward, frozen, generator_first]


def adversarial(loop: Callable[[Nets], Tensor]) -> Callable[[], Training]:
    def setup() -> Training:
        nets = Nets()
        return Training(lambda _: loop(nets), [nets.makes, nets.judges], [nets.of_makes, nets.of_judges])

    return setup


@pytest.mark.parametrize("loop", LOOPS)
def test_adversarial_nets_train_where_gradients_of_the_other_net_have_no_room(loop: Callable[[Nets], Tensor]) -> None:
    # given room for the weights of both nets, and for what the backward pass of the discriminator holds, which is a
    # little less than twice that: with the gradients of the generator, which idle then, it would be one net more
    gc.collect()
    budget = live_ram_bytes() + 4 * NET_BYTES - WEIGHT_BYTES
    # when
    outcome, room = train_within(adversarial(loop), STEPS, budget)
    # then
    assert_equal(outcome, train(adversarial(loop), STEPS))
    assert run_of(room).kinds.measured_peak_bytes <= budget
    assert [step.mode for step in room.steps[STEPS:]] == ["plan"] * STEPS
    assert room.beyond_bytes <= MIN_SIZE_BYTES


@pytest.mark.parametrize("nets", [5, 6, 7])
def test_what_others_have_leaves_before_a_step_whose_plan_has_no_room_for_it(nets: int) -> None:
    # given less than all that two nets have: weights, gradients and two states, and what a backward pass holds
    gc.collect()
    budget, setup = live_ram_bytes() + nets * NET_BYTES, adversarial(zeroed_before_backward)
    # when
    outcome, room = train_within(setup, STEPS, budget)
    # then
    assert_equal(outcome, train(setup, STEPS))
    assert run_of(room).kinds.measured_peak_bytes <= budget
    assert room.beyond_bytes <= MIN_SIZE_BYTES


def test_idle_gradients_count_where_one_optimizer_steps() -> None:
    # given a net with gradients that nothing uses, next to the one that trains
    def setup() -> Training:
        nets = Nets()
        nets.make_loss(nets.makes(nets.noise)).backward()
        nets.of_judges.zero_grad()
        return Training(lambda _: judged(nets)[1], [nets.makes, nets.judges], [nets.of_judges])

    # when: all of it has room
    outcome, room = train_within(setup, STEPS, 2**31, measure=True)
    # then they are simulated where they are
    assert_equal(outcome, train(setup, STEPS))
    assert room.measured is not None
    assert room.simulated is not None
    assert abs(room.measured.peak_allocated_bytes - room.simulated.peak_allocated_bytes) < WEIGHT_BYTES

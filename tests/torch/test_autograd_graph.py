"""Every way to use autograd's graph gives the same numbers and the same errors."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor, nn

import elbowroom as er
from tests.torch.helpers import (
    MIN_SIZE_BYTES,
    Setup,
    Training,
    assert_same_within,
    finish,
    mean_square,
    mlp,
    seeded,
    tight_budget,
    train,
    train_within,
)

Between = Callable[[], None]
Way = Callable[[nn.Module, Tensor, Between], Tensor]


def with_backward(way: Way) -> Setup:
    """A perceptron on one batch.

    `way` makes a loss and the gradients. Between its forward and its backward it lets a larger batch pass through the
    model both ways: so there is a time at which it pays to swap what `way` has saved, however often it is read later.
    """

    def setup() -> Training:
        model, batch, larger = nn.Sequential(mlp(), nn.Tanh()), torch.randn(96, 64), torch.randn(256, 64)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

        def step(_: int) -> Tensor:
            optimizer.zero_grad(set_to_none=True)
            loss = way(model, batch, lambda: mean_square(model(larger)).backward())
            optimizer.step()
            return loss.detach()

        return Training(step, [model], [optimizer])

    return setup


def once(model: nn.Module, batch: Tensor, between: Between) -> Tensor:
    loss = mean_square(model(batch))
    between()
    loss.backward()
    return loss


def twice(model: nn.Module, batch: Tensor, between: Between) -> Tensor:
    loss = mean_square(model(batch))
    between()
    loss.backward(retain_graph=True)
    loss.backward()
    return loss


def twice_with_much_in_between(model: nn.Module, batch: Tensor, between: Between) -> Tensor:
    loss = mean_square(model(batch))
    between()
    loss.backward(retain_graph=True)
    between()
    loss.backward()
    return loss


def two_losses_on_one_graph(model: nn.Module, batch: Tensor, between: Between) -> Tensor:
    output = model(batch)
    first, second = mean_square(output), output.sin().mean()
    between()
    first.backward(retain_graph=True)
    second.backward()
    return first + second


def row_by_row(model: nn.Module, batch: Tensor, between: Between) -> Tensor:
    output = model(batch)
    losses = [output[rows].square().mean() for rows in (slice(32), slice(32, 64), slice(64, 96))]
    between()
    for loss in losses:
        loss.backward(retain_graph=True)
    return torch.stack(losses)


def gradient_penalty(model: nn.Module, batch: Tensor, between: Between) -> Tensor:
    batch = batch.clone().requires_grad_()
    scores = model(batch)
    (slope,) = torch.autograd.grad(scores.sum(), batch, create_graph=True)
    loss = mean_square(scores) + (slope.norm(dim=1) - 1).square().mean()
    between()
    loss.backward()
    return loss


def hessian_times_vector(model: nn.Module, batch: Tensor, between: Between) -> Tensor:
    weights = list(model.parameters())
    gradients = torch.autograd.grad(mean_square(model(batch)), weights, create_graph=True)
    product = torch.stack([(g * w.detach()).sum() for g, w in zip(gradients, weights, strict=True)]).sum()
    between()
    product.backward()
    return product


def third_derivative(model: nn.Module, batch: Tensor, between: Between) -> Tensor:
    x = batch.clone().requires_grad_()
    found = model(x).sum()
    for _ in range(2):
        (slope,) = torch.autograd.grad(found, x, create_graph=True)
        found = (slope * slope).sum() * 1e-2
        between()
    found.backward()
    return found


def inner_step(model: nn.Module, batch: Tensor, between: Between) -> Tensor:
    """A learning step that is learnt through, as in MAML."""
    weights: dict[str, Tensor] = dict(model.named_parameters())
    inner = mean_square(torch.func.functional_call(model, weights, batch))
    gradients = torch.autograd.grad(inner, list(weights.values()), create_graph=True)
    moved = {name: w - 0.1 * g for (name, w), g in zip(weights.items(), gradients, strict=True)}
    outer = mean_square(torch.func.functional_call(model, moved, batch.flip(0)))
    between()
    outer.backward()
    return outer


def some_weights_only(model: nn.Module, batch: Tensor, between: Between) -> Tensor:
    loss = mean_square(model(batch))
    between()
    loss.backward(inputs=[p for p in model.parameters() if p.dim() == 2])
    return loss


def with_hooks_on_tensors_and_modules(model: nn.Module, batch: Tensor, between: Between) -> Tensor:
    body, end = model.children()
    layers = list(body.children())[2:4]
    handles = [layer.register_full_backward_hook(lambda _m, g, _o: (g[0] * 0.5,)) for layer in layers]
    hidden = body(batch)
    hidden.register_hook(lambda gradient: gradient.clamp(-1e-3, 1e-3))
    hidden.retain_grad()
    loss = mean_square(end(hidden))
    between()
    loss.backward()
    for handle in handles:
        handle.remove()
    return loss + hidden.grad.abs().sum()


def in_another_thread(model: nn.Module, batch: Tensor, between: Between) -> Tensor:
    loss = mean_square(model(batch))
    between()
    thread = threading.Thread(target=loss.backward)
    thread.start()
    thread.join()
    return loss


def half_of_a_graph_dropped(model: nn.Module, batch: Tensor, between: Between) -> Tensor:
    dropped = model(batch.flip(0)).exp()
    loss = mean_square(model(batch))
    between()
    loss.backward()
    return loss + dropped.detach().mean()


def looked_at_in_between(model: nn.Module, batch: Tensor, between: Between) -> Tensor:
    """The graph's saved tensors are read by hand, ahead of and beside the backward pass."""
    output = model(batch)
    loss = mean_square(output)
    between()
    seen = output.grad_fn._saved_result.square().mean()
    loss.backward(retain_graph=True)
    return loss.detach() + seen + output.grad_fn._saved_result.sum()


def looking_for_anomalies(model: nn.Module, batch: Tensor, between: Between) -> Tensor:
    with pytest.warns(UserWarning, match="Anomaly Detection"):
        anomalies = torch.autograd.detect_anomaly()
    with anomalies:
        loss = mean_square(model(batch))
        between()
        loss.backward()
    return loss


WAYS = [
    once,
    twice,
    twice_with_much_in_between,
    two_losses_on_one_graph,
    row_by_row,
    gradient_penalty,
    hessian_times_vector,
    third_derivative,
    inner_step,
    some_weights_only,
    with_hooks_on_tensors_and_modules,
    in_another_thread,
    half_of_a_graph_dropped,
    looked_at_in_between,
    looking_for_anomalies,
]


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_a_use_of_the_graph_gives_the_same_numbers(way: Way) -> None:
    setup = with_backward(way)
    assert_same_within(setup)


def test_a_backward_pass_after_the_room_has_closed_gives_the_same_gradients() -> None:
    # given
    setup = with_backward(once)

    def forward(training: Training) -> Tensor:
        return mean_square(training.modules[0](torch.linspace(-1, 1, 256 * 64).view(256, 64)))

    def without_a_room() -> dict[str, Tensor]:
        training = seeded(setup)
        finish(training, 3)
        forward(training).backward()
        return training.state()

    # when
    plain = without_a_room()
    budget = tight_budget(setup)
    with er.within(budget, min_size=MIN_SIZE_BYTES) as room:
        training = seeded(setup)
        finish(training, 3)
        with quiet():
            loss = forward(training)
    loss.backward()

    # then
    state = training.state()
    assert all(torch.equal(state[name], value) for name, value in plain.items())
    assert room.steps[-1].mode == "plan"


# Errors


def error_of(work: Callable[[], object]) -> Exception:
    with pytest.raises(Exception) as caught:  # noqa: PT011 - which one it is, is what is compared
        work()
    return caught.value


def leading(error: Exception) -> str:
    """Autograd names the tensor, then the node it came from, which saved-tensor hooks are not told."""
    return str(error).split("]")[0]


def change_in_place(x: Tensor) -> Tensor:
    y = x.sigmoid()
    found = y * y
    y.add_(1)
    return found


def change_a_view_in_place(x: Tensor) -> Tensor:
    y = x.exp()
    y[:1].zero_()
    return y


def change_a_weight_in_place(x: Tensor) -> Tensor:
    weight = nn.Parameter(torch.ones(x.shape[1], 3))
    found = x.exp() @ weight
    with torch.no_grad():
        weight.add_(1)
    return found


def change_through_detach(x: Tensor) -> Tensor:
    y = x.tanh()
    y.detach().zero_()
    return y


@pytest.mark.parametrize(
    "change", [change_in_place, change_a_view_in_place, change_a_weight_in_place, change_through_detach]
)
@pytest.mark.parametrize("rows", [2, 96], ids=["small", "large"])
@pytest.mark.parametrize("when", ["observe", "plan", "keep"])
def test_a_saved_tensor_that_was_changed_in_place_is_refused_as_autograd_does(
    change: Callable[[Tensor], Tensor], rows: int, when: str
) -> None:
    # given a loop of which one step makes the mistake
    setup = with_backward(once)

    def mistake(training: Training) -> None:
        hidden = training.modules[0](torch.ones(96, 64))
        change(hidden[:rows]).sum().backward()

    # when
    expected = error_of(lambda: mistake(seeded(setup)))
    budget = 2**40 if when == "keep" else tight_budget(setup, share=0.7)
    with quiet(), er.within(budget, min_size=MIN_SIZE_BYTES) as room:
        training = seeded(setup)
        finish(training, 0 if when == "observe" else 4)
        found = error_of(lambda: mistake(training))

    # then
    assert [step.mode for step in room.steps[-1:]] == ([] if when == "observe" else [when])
    assert (type(found), leading(found)) == (type(expected), leading(expected))
    assert "modified by an inplace operation" in str(found)


@contextmanager
def quiet() -> Iterator[None]:
    """A step unlike the others, and one without an end, are each said once, by a warning: here they are meant."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "elbowroom: (saved storage|no step of a training)", RuntimeWarning)
        yield


def test_a_second_backward_without_retain_graph_is_refused_as_autograd_does() -> None:
    # given
    def backward_twice(model: nn.Module, batch: Tensor, between: Between) -> Tensor:
        loss = mean_square(model(batch))
        between()
        loss.backward()
        loss.backward()
        return loss

    # when
    setup = with_backward(backward_twice)
    expected = error_of(lambda: train(setup, steps=1))
    with quiet():
        found = error_of(lambda: train_within(setup, steps=1, budget=2**30))

    # then
    assert (type(found), str(found)) == (type(expected), str(expected))
